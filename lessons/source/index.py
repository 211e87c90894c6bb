# %% [markdown]
# # How an LLM server shares one GPU
#
# Many people write to one model at the same moment, and there is one GPU. Who gets the next token? Whose
# memory has to go? And who notices?
#
# In this course you build the server that decides it, one idea at a time, and *see* what each idea does to
# the batch, to the memory and to the users' waiting. The model is a real GPT-2, small enough for a laptop. No GPU is needed,
# and no network.
#
# **Begin here:** run the two cells below (click one and press Shift+Enter), then follow a link.

# %%
from toyserve.course.start_page import course_map, lesson_table

course_map()

# %%
lesson_table()

# %% [markdown]
# ## How a lesson works
#
# 1. **A question and a picture.** Then you *predict* a number, before you see the answer.
# 2. **You build it.** A few lines between two arrows (↓ ↑), plugged into a real engine. A cell says ✓, or what is
#    wrong; until yours works, the lesson goes on with a folded-away solution.
# 3. **You see and measure it**: on the real model, and on the clock of a GPU that you don't have.
# 4. **You break it.** A fault from real servers, seeded on purpose. You find it and mend it.
#
# Run the cells in order. Everything you write stays in your own folder and is never overwritten. Run
# the table's cell again to see how far you are.

# %% [markdown]
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
# Each lesson needs only the ones before it, and says so when it leans on one. After a lesson, its **exercise**
# (folder `exercises/`, same number) is the harder half. A word you don't know: the [glossary](glossary.md).
