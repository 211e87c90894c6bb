# %% [markdown]
# # How an LLM server shares one GPU
#
# Many people write to one model at the same moment, and there is one GPU. Who gets the next token? Whose
# memory has to go? And who notices?
#
# Here you build the server that decides it, one idea at a time, and *see* what each idea does to the batch,
# to the memory and to everybody's waiting. The model is a real GPT-2, small enough for a laptop. No GPU is needed,
# and no network.
#
# ### ▶ [Begin with lesson 00](00_serving_engine.ipynb): ten minutes, nothing to know beforehand

# %%
from toyserve.course.start_page import course_map, first_picture, lesson_table

first_picture()

# %% [markdown]
# *Six people, A to F, ask a server with four places (the rows). Above, E and F wait while three places compute
# for nobody (hatched). Below, a few lines are changed: you write them in lesson 04, and find out whom they harm.*

# %% [markdown]
# ## What you will be able to do
#
# - **Write the loop** that vLLM-like servers run: who goes next, how many tokens each, whose memory goes.
# - **Draw any step** of a server, and say who waits, for what, and by which rule.
# - **Work out** how many requests fit on a GPU, and what paging their memory buys.
# - **Read** TTFT, TPOT, tail latency and goodput without being fooled by them.
# - **Tell what a change costs, and whom**: more throughput is often somebody's longer wait.

# %% [markdown]
# ## The lessons, and where you are
#
# Run this cell (click it, then press Shift+Enter) whenever you want to know how far you are.

# %%
lesson_table()

# %%
course_map()

# %% [markdown]
# ## How a lesson works
#
# 1. **A question and a picture.** Then you *predict* a number, before you see the answer.
# 2. **You build it.** A few lines between two arrows (↓ ↑), plugged into a real engine. A cell says ✓, or what is
#    wrong; until yours works, the lesson goes on with a folded-away solution.
# 3. **You see and measure it**: on the real model, and on the clock of a GPU that you don't have.
# 4. **You break it.** A fault from real servers, seeded on purpose. You find it and mend it.
# 5. **You do its exercise**, the harder half: five parts that answer at once, in words and pictures, and one
#    explanation for a person to read.

# %% [markdown]
# Run the cells in order. Everything you write stays in your own folder and is never overwritten. A word that
# you don't know: the [glossary](glossary.md).
#
# ## Which way?
#
# | you have | take |
# |---|---|
# | ten minutes | 00 |
# | an evening | 00, 01, 03, 04 |
# | a day | 00 to 07 |
# | an interview next week | 02, 04, 05, 07, 09, 11 |
# | a service to run | 04, 05, 09, 10, 11, 14 |
# | a love of kernels | 02, 06, 07, 08 |
#
# Each lesson needs only the ones before it, and says so when it leans on one.
