"""Deliberate faults in the package, one at a time, each of which some test or the simulation must notice.

Tests that pass show little until it is known what they would fail for. `python -m tests.mutants`
applies each fault to a copy, runs the tests nearest to it, then a slice of the simulation, and
tells what noticed it. A fault that nothing notices is a test that is missing.
"""
