"""Grading a class: a process for each submission, and a judge that no submission's code reaches.

``submission`` reads a learner's notebook and puts their answers among the teacher's own cells;
``sessions`` and ``worker`` run that in a process with limits; ``grade`` judges what came back, part
by part; ``classroom`` does a folder of submissions in parallel; ``report`` writes the pages.
"""
