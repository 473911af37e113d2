"""The promises, held against what was seen of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.faults import KINDS, may_end_by
from tests.simulation.ledger import Ended, Sent
from tests.simulation.plan import Call
from tests.simulation.replies import REPLIES
from tests.simulation.world import BACKOFF, CLOSE, HANDSHAKE, LAST_CALL, READ, RECOVERY, World, last_call
from trio_mcp_resilient import Resend, SessionEnded, SessionStarted, State, StateChanged
from trio_mcp_resilient._flight import EndReason
from trio_mcp_resilient._policy import HARMLESS
from trio_mcp_resilient._secrets import fingerprint
from trio_mcp_resilient._states import TRANSITIONS

NEVER_RAN = frozenset({"SessionLost", "ConnectionLost", "GaveUp", "HandshakeFailed"})
"""Errors that say the request was certainly not executed."""


def judge(world: World) -> list[str]:
    """Return what was wrong; nothing if all is well."""
    problems = list(world.ledger.problems)
    for check in CHECKS:
        problems += check(world)
    return problems


def _planned(world: World) -> Iterator[tuple[Call, Ended]]:
    last = [last_call(world.plan.calm_at), Call(LAST_CALL + 1, 0.0, "list_tools")]
    for call in (*world.plan.calls, *last):
        ended = world.ledger.ended.get(call.number)
        if ended is not None:
            yield call, ended


def _sent_by_call(world: World) -> dict[int, list[Sent]]:
    by_call: dict[int, list[Sent]] = defaultdict(list)
    for sent in world.ledger.sent:
        if sent.call is not None and sent.http_method == "POST":
            by_call[sent.call].append(sent)
    return by_call


def _calls_end(world: World) -> Iterator[str]:
    """Every call ends within its bound, and its answer is its own."""
    resuming = 700.0 if world.plan.settings.resumable else 0.0
    for call, ended in _planned(world):
        one_post = 10 + READ + 5 + 25 + call.seconds + resuming
        bound = RECOVERY + 2 * (RECOVERY + one_post)
        if call.give_up_after is not None:
            bound = call.give_up_after
        if call.timeout is not None:
            # It does not hold for the listing by which the SDK validates the first result of a tool.
            listed = world.ledger.ended.get(LAST_CALL + 1)
            listing = 0.0 if listed and listed.how == "result" and listed.ended <= ended.began else bound
            bound = call.timeout + listing
        if ended.ended < 0:
            yield f"call {call.number} never ended"
        elif ended.ended - ended.began > bound + 0.001:
            yield f"call {call.number} took {ended.ended - ended.began:.2f} s, more than {bound:g}"
        if ended.problem:
            yield f"call {call.number} got {ended.problem}"


def _calls_end_as_they_may(world: World) -> Iterator[str]:
    settings = world.plan.settings
    expected = may_end_by(world.plan.faults, settings)
    single = len(world.plan.faults) == 1 and world.plan.faults[0].amount <= 1
    single = single and settings.idle_timeout is None
    sessions_go = settings.idle_timeout is not None or any(KINDS[f.kind].loses for f in world.plan.faults)
    opening = world.ledger.ended[0]
    if opening.how not in {"result", "cancelled"} | (expected & {"GaveUp", "HandshakeFailed"}):
        yield f"opening ended by {opening.how}: {opening.error!r}"
    for call, ended in _planned(world):
        allowed = {"result", *expected}
        if call.give_up_after is not None or call.give_up_at_step is not None:
            allowed.add("cancelled")
        if call.timeout is not None:
            allowed.add("MCPError")
        if settings.leaves != "at the end":
            allowed |= {"OutcomeUnknown", "ClosedResourceError", "SessionLost", "ConnectionLost", "cancelled"}
        resumes = settings.resumable and settings.get_offered
        resumes = resumes and not (settings.json_mode or settings.stateless)
        resumes = resumes and settings.version == "2025-11-25"
        # The SDK's server may end a stream before it has said the id to resume from.
        resumes = resumes and not settings.real
        if (call.ends == "detach" and not resumes) or (settings.resumable and sessions_go):
            # What could be resumed goes with the session that kept it.
            allowed.add("OutcomeUnknown")
        if (call.resend or settings.resend) is Resend.NEVER:
            allowed |= {"SessionLost", "ConnectionLost", "RequestRefused", "OutcomeUnknown"}
        elif single and call.rpc_method in HARMLESS and settings.leaves == "at the end":
            allowed.discard("OutcomeUnknown")
        if ended.how not in allowed and ended.ended >= 0:
            yield f"call {call.number} ended by {ended.how}, not one of {sorted(allowed)}: {ended.error!r}"


def _nothing_ran_that_did_not(world: World) -> Iterator[str]:
    """What is said about having run is true."""
    made_up = any(f.kind == "answer" and REPLIES[f.how].tools_only for f in world.plan.faults)
    for call, ended in _planned(world):
        runs = world.ledger.runs[call.number]
        if ended.how in NEVER_RAN and runs:
            yield f"call {call.number} ended by {ended.how}, but ran {runs} times: {ended.error}"
        seen = call.is_tool or not world.plan.settings.real
        if ended.how == "result" and not runs and not made_up and seen:
            yield f"call {call.number} has a result, but never ran"
        # A client that is closed does not look how far a request has got.
        if world.plan.settings.leaves != "at the end":
            continue
        if ended.how == "OutcomeUnknown" and not any(s.whole for s in _sent_by_call(world)[call.number]):
            yield f"call {call.number} ended by OutcomeUnknown, but never left whole"


def _at_most_once(world: World) -> Iterator[str]:
    for call, _ in _planned(world):
        runs, most = world.ledger.runs[call.number], 2 if world.plan.repeatable(call) else 1
        if runs > most:
            yield f"call {call.number} ({call.what}) ran {runs} times"


def _at_most_twice_sent(world: World) -> Iterator[str]:
    sent = _sent_by_call(world)
    for call, _ in _planned(world):
        most = 1 if (call.resend or world.plan.settings.resend) is Resend.NEVER else 2
        if world.tokens is not None:
            most += world.tokens.repeated[call.number]
        if len(sent[call.number]) > most:
            yield f"call {call.number} was sent {len(sent[call.number])} times"
    ids = Counter(s.request_id for s in world.ledger.sent if s.request_id is not None)
    if world.tokens is not None:
        ids -= world.tokens.repeated_ids
    if repeated := [request_id for request_id, times in ids.items() if times > 1]:
        yield f"request ids {repeated} were used twice"


def _nothing_sent_after_its_end(world: World) -> Iterator[str]:
    sent = _sent_by_call(world)
    for call, ended in _planned(world):
        if any(s.at > ended.ended >= 0 for s in sent[call.number]):
            yield f"call {call.number} was sent after it had ended"


def _states(world: World) -> Iterator[str]:
    moves = [event for event in world.ledger.events if isinstance(event, StateChanged)]
    for move in moves:
        if move.after not in TRANSITIONS[move.before]:
            yield f"the client moved from {move.before} to {move.after}"
    if moves and moves[-1].after is not State.CLOSED:
        yield f"the client was left {moves[-1].after}"


def _generations(world: World) -> Iterator[str]:
    """A generation starts when there is none, and one after the other."""
    kinds = (SessionStarted, SessionEnded)
    turns = [event for event in world.ledger.events if isinstance(event, kinds)]
    for number, (before, after) in enumerate(pairwise(turns)):
        if type(before) is type(after):
            yield f"turn {number}: {before} was followed by {after}"
    numbers = [event.generation for event in turns if isinstance(event, SessionStarted)]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"generations were numbered {numbers}"


def _handshakes(world: World) -> Iterator[str]:
    for sent in world.ledger.sent:
        if sent.rpc_method == "initialize":
            if sent.session is not None:
                yield "initialize carried a session id"
            if sent.state not in (State.CONNECTING, State.RECOVERING):
                yield f"a handshake was made while the client was {sent.state}"
    exact = all(KINDS[fault.kind].narrow for fault in world.plan.faults)
    if exact and world.plan.settings.idle_timeout is None and not world.plan.settings.stateless:
        most = 1 + world.losses + world.invalidations
        if world.peer.handshakes > most:
            yield f"{world.peer.handshakes} handshakes for {most - 1} reasons"
    # By its id, since the application's credentials may send one again.
    initialized = len({sent.request_id for sent in world.ledger.sent if sent.rpc_method == "initialize"})
    if world.statistics is not None and initialized > world.statistics.handshakes + 1:
        yield f"{initialized} handshakes were sent, {world.statistics.handshakes} counted"


def _no_stale_session(world: World) -> Iterator[str]:
    """After the swap only what was in flight, and the farewell, goes to the old session."""
    starts = [event for event in world.ledger.events if isinstance(event, SessionStarted)]
    order = {event.session: number for number, event in enumerate(starts)}
    swaps = world.ledger.swaps
    for sent in world.ledger.sent:
        if sent.session is None or sent.http_method == "DELETE":
            continue
        number = order.get(fingerprint(sent.session))
        if number is None or number + 1 >= len(swaps) or sent.at <= swaps[number + 1]:
            continue
        swapped = swaps[number + 1]
        if sent.call is not None:
            if world.ledger.ended[sent.call].began > swapped:
                yield f"call {sent.call} began after the swap at {swapped:.4f}, and went to the old session"
        elif sent.http_method == "GET" and sent.last_event_id is None and sent.at > swapped + 11:
            yield "the standalone stream was opened on the old session"
        elif sent.rpc_method == "ping" and sent.at > swapped + 11:
            yield "the old session was pinged"


def _no_farewell_to_the_lost(world: World) -> Iterator[str]:
    """DELETE is for sessions that the server still keeps."""
    ends = [event for event in world.ledger.events if isinstance(event, SessionEnded)]
    lost = {event.session for event in ends if event.reason is EndReason.LOST}
    for sent in world.ledger.sent:
        if sent.http_method == "DELETE" and sent.session and fingerprint(sent.session) in lost:
            yield f"{world.ledger.ordinal(sent.session)} was lost, and then deleted"


def _no_secret(world: World) -> Iterator[str]:
    """No error shows a session's id, which is a bearer secret."""
    sessions = {sent.session for sent in world.ledger.sent if sent.session is not None}
    for ended in world.ledger.ended.values():
        said = str(ended.error)
        if ended.error is not None and any(session in said for session in sessions):
            yield f"the error of call {ended.call} shows a session's id"


def _liveness(world: World) -> Iterator[str]:
    """Once faults stop, the next call succeeds within one backoff step."""
    ended = world.ledger.ended.get(LAST_CALL)
    half_open = world.plan.settings.silence_stays and any(f.kind == "wire cut" for f in world.plan.faults)
    if ended is None or half_open:
        # Nobody can tell that an idle connection leads nowhere before writing on it.
        return
    answers = [REPLIES[fault.how] for fault in world.plan.faults if fault.kind == "answer"]
    pauses = [float(reply.headers.get("retry-after", 0)) for reply in answers]
    bound = max([BACKOFF.cap, *pauses]) + 4 * world.plan.settings.latency
    if world.plan.settings.silence_stays and any(KINDS[fault.kind].silent for fault in world.plan.faults):
        # An attempt that waits in silence is given up first.
        bound += HANDSHAKE + CLOSE
    if ended.how != "result":
        yield f"the call after all faults ended by {ended.how}: {ended.error!r}"
    elif ended.ended - ended.began > bound + 0.01:
        yield f"the call after all faults took {ended.ended - ended.began:.2f} s, more than {bound:g}"


def _left(world: World) -> Iterator[str]:
    """No session stays at the server that the client knew, and could part from."""
    if not world.left:
        return
    started = {event.session for event in world.ledger.events if isinstance(event, SessionStarted)}
    parted = {sent.session for sent in world.ledger.sent if sent.http_method == "DELETE"}
    broken = any(not KINDS[fault.kind].narrow for fault in world.plan.faults)
    if world.plan.settings.leaves == "cancelled" or world.plan.settings.stateless:
        return
    for session in world.left:
        if not broken and session not in parted and session not in world.told_lost:
            known = "known" if fingerprint(session) in started else "unknown"
            yield f"{world.ledger.ordinal(session)} ({known} to the client) was left at the server"


CHECKS = (
    _calls_end,
    _calls_end_as_they_may,
    _nothing_ran_that_did_not,
    _at_most_once,
    _at_most_twice_sent,
    _nothing_sent_after_its_end,
    _states,
    _generations,
    _handshakes,
    _no_stale_session,
    _no_farewell_to_the_lost,
    _no_secret,
    _liveness,
    _left,
)
