"""Deterministic simulation: a client, a server and a network that breaks, all decided by one seed.

A *plan* is drawn from the seed: settings, calls, faults. A *world* carries it out under virtual
time, with the product's own code on its own HTTP, against a scripted server or the SDK's real one.
A *ledger* keeps what was seen from outside: bytes sent, handlers started, events told, how calls
ended. The *oracle* holds the ledger against the promises. `python -m tests.simulation` runs many.
"""
