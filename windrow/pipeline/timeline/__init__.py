"""The timeline of a run as a value: lanes, Chrome trace, picture, OpenTelemetry.

May import: statistics.
In: spans.
Out: a `Timeline`, which can be drawn, saved and exported.
"""
