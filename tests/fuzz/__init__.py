"""Bytes that no server means to send, against everything that reads them: `nox -s fuzz -- --seconds 60`.

Hypothesis makes the bytes, from a seed that is printed, and finds the smallest that fail. What it
found has become a test next to what it broke.
"""
