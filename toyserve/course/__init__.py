"""The course's machinery: the notebook builder, quizzes, code and diffs shown, the workspace."""
