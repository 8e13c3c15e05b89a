"""Functions of ready-made transforms: columns of compressed images, audio and video, or of text, become arrays.

May import: the modules of tasks, and what they may import.
In: tables with such a column.
Out: tables with the decoded column. Libraries that decode are imported where rows are decoded, in each process.
"""
