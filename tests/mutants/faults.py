"""The faults, as patches: a text of one module that occurs exactly once, and what it becomes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault."""

    name: str
    module: str
    """Without its underscore and ending."""
    old: str
    new: str
    tests: str = "endings recovery"
    """The test modules nearest to it."""


MUTANTS = (
    # -- at most once, at most twice -----------------------------------------------------------
    Mutant(
        "resend what may have run",
        "dispatcher",
        "if call.method in HARMLESS or policy is Resend.ALWAYS:\n            return True",
        "return True",
    ),
    Mutant(
        "resend until it works",
        "dispatcher",
        """        if outcome.result is None and self._may_resend(call, outcome):
            generation""",
        """        while outcome.result is None and self._may_resend(call, outcome):
            outcome = await self._post(await self._next_chance(call, outcome), call)
        if outcome.result is None and self._may_resend(call, outcome):
            generation""",
    ),
    Mutant(
        "resend on the session that was lost",
        "dispatcher",
        "            generation = await self._next_chance(call, outcome)",
        "            await self._next_chance(call, outcome)",
    ),
    Mutant(
        "never means sometimes",
        "dispatcher",
        "        if policy is Resend.NEVER:\n            return False\n",
        "",
    ),
    Mutant(
        "every tool is idempotent",
        "dispatcher",
        "policy is Resend.IDEMPOTENT and self.state.may_repeat(call.tool)",
        "policy is Resend.IDEMPOTENT",
    ),
    Mutant("tools are harmless", "policy", '        "ping",\n', '        "ping",\n        "tools/call",\n'),
    Mutant(
        "sent whole counts as not sent",
        "wire",
        "return self <= Stage.PARTLY_WRITTEN",
        "return self <= Stage.WRITTEN",
    ),
    Mutant(
        "sent in part counts as sent",
        "wire",
        "return self <= Stage.PARTLY_WRITTEN",
        "return self < Stage.PARTLY_WRITTEN",
    ),
    Mutant(
        "a gateway's error means not executed",
        "detector",
        '"other 5xx",\n        Verdict.OUTCOME_UNKNOWN',
        '"other 5xx",\n        Verdict.TRANSIENT',
        "detector endings",
    ),
    Mutant(
        "the second attempt unsays the first",
        "dispatcher",
        "first.fate is Fate.UNKNOWN and outcome.fate in",
        "False and outcome.fate in",
        "found_by_simulation",
    ),
    Mutant(
        "what was taken on is lost when resuming is refused",
        "resuming",
        "if outcome.fate is Fate.LOST:",
        "if False:",
        "found_by_simulation",
    ),
    Mutant(
        "a loss said after progress means not executed",
        "exchange",
        "Fate.UNKNOWN if answer.chatter else Fate.LOST",
        "Fate.LOST",
        "session_loss streams endings",
    ),
    Mutant(
        "the listing after a call fails the call",
        "open",
        "await super().validate_tool_result(name, result)\n        except (MCPError, ResilientError,",
        "await super().validate_tool_result(name, result)\n        except (ZeroDivisionError,",
        "found_by_simulation",
    ),
    Mutant("attempts are not counted", "dispatcher", "        call.posts += outcome.begun\n", ""),
    Mutant(
        "resends are not counted",
        "dispatcher",
        "            self._counters.resends += 1\n",
        "",
        "recovery events",
    ),
    # -- whose answer ----------------------------------------------------------------------------
    Mutant(
        "any result will do",
        "answers",
        "if isinstance(message, Result) and matches(message.id, request_id):",
        "if isinstance(message, Result):",
        "endings streams",
    ),
    Mutant(
        "any error will do",
        "answers",
        "(message.id is None or matches(message.id, request_id))",
        "True",
        "survivors",
    ),
    Mutant(
        "request ids come again",
        "dispatcher",
        "        return next(self._ids)",
        "        return next(self._ids) % 5 + 1",
        "recovery",
    ),
    Mutant(
        "progress goes to anybody",
        "router",
        "self._flights.get(coerce_request_id(token))",
        "next(iter(self._flights.values()), None)",
        "streams",
    ),
    # -- the detector ----------------------------------------------------------------------------
    Mutant(
        "a 400 is a loss",
        "detector",
        'Rule("other 4xx", Verdict.REFUSED',
        'Rule("other 4xx", Verdict.SESSION_LOST',
        "detector endings",
    ),
    Mutant(
        "a 404 without an id is a loss",
        "detector",
        'asks for a new session",\n        _only(404, 410),\n        with_id=True,',
        'asks for a new session",\n        _only(404, 410),',
        "detector",
    ),
    Mutant(
        "401 is about the session",
        "detector",
        'Rule("credentials", Verdict.AUTH',
        'Rule("credentials", Verdict.SESSION_LOST',
        "detector endings",
    ),
    # -- one recovery ----------------------------------------------------------------------------
    Mutant(
        "news of any generation is news of this one",
        "supervisor",
        """        if generation is self._current:
            if notice is Notice.CONDEMN:
                self._end(generation,""",
        """        if self._current is not None:
            if notice is Notice.CONDEMN:
                self._end(self._current,""",
        "supervisor recovery",
    ),
    Mutant(
        "each loser begins a recovery of his own",
        "supervisor",
        "        if self._series is None:\n            self._series = Series()\n        self._wanted",
        "        self._series = Series()\n        self._wanted",
        "supervisor recovery",
    ),
    Mutant(
        "nobody is woken when a session stands",
        "supervisor",
        "        series.errors.clear()\n        series.done.set()",
        "        series.errors.clear()",
        "supervisor",
    ),
    Mutant(
        "nobody is woken when a recovery gives up",
        "supervisor",
        "recovery))\n        series.done.set()",
        "recovery))",
        "supervisor",
    ),
    Mutant(
        "nobody is woken when the client closes",
        "supervisor",
        "        if self._series is not None:\n            self._series.done.set()\n",
        "",
        "supervisor lifetime",
    ),
    Mutant(
        "a dormant client sleeps for ever",
        "supervisor",
        "            self._series = Series()\n        self._wanted.set()\n        return",
        "            self._series = Series()\n        return",
        "supervisor",
    ),
    Mutant(
        "no backoff",
        "supervisor",
        "await trio.sleep(max(pause, self._backoff.delay(series.attempts, random.random)))",
        "await trio.sleep(0)",
        "supervisor",
    ),
    Mutant(
        "the server's pause is not kept",
        "supervisor",
        "max(pause, self._backoff.delay(series.attempts, random.random))",
        "self._backoff.delay(series.attempts, random.random)",
        "supervisor",
    ),
    Mutant(
        "the budget never ends",
        "supervisor",
        "if self._backoff.spent(series.attempts):",
        "if False:",
        "supervisor",
    ),
    Mutant(
        "attempts count double", "supervisor", "series.attempts += 1", "series.attempts += 2", "supervisor"
    ),
    Mutant(
        "waiting for a session has no end",
        "supervisor",
        "with self._patience.move_on_after(self._timeouts.recovery):",
        "with self._patience.move_on_after(1e9):",
        "supervisor",
    ),
    Mutant(
        "the close is held inside the swap",
        "supervisor",
        "        generation = self._make(self._number + 1)",
        """        while nursery.child_tasks:
            await trio.sleep(0.1)
        generation = self._make(self._number + 1)""",
        "recovery lifetime",
    ),
    Mutant(
        "a doubted session is not asked",
        "supervisor",
        "if self._doubted is not None and await self._lives(self._doubted):",
        "if False:",
        "supervisor",
    ),
    Mutant(
        "a doubted session is always believed",
        "supervisor",
        "            if outcome.fate is Fate.LOST:\n",
        "            if False:\n",
        "supervisor",
    ),
    Mutant(
        "a loss met by the probe of another is no news",
        "supervisor",
        "        elif generation is self._doubted:",
        "        elif False:",
        "supervisor",
    ),
    Mutant("the backoff has no cap", "policy", "        base = min(base, self.cap)\n", "", "policy"),
    Mutant("any move is legal", "states", "if to not in TRANSITIONS[before]:", "if False:", "states"),
    # -- a generation and its end ----------------------------------------------------------------
    Mutant(
        "the end is not broadcast",
        "generation",
        "        for flight in self._flights.values():\n            flight.tell(end, drain)\n",
        "",
        "recovery streams",
    ),
    Mutant(
        "the end does not wait for the calls in flight",
        "generation",
        "                    if self._flights:\n                        await self._idle.wait()\n",
        "",
        "recovery lifetime",
    ),
    Mutant(
        "the calls in flight are cut off at once",
        "generation",
        "drain = 0.0 if end.reason is EndReason.CLOSED else self._around.timeouts.drain",
        "drain = 0.0",
        "recovery lifetime",
    ),
    Mutant(
        "a session lost before it stands is used",
        "supervisor",
        "            generation.condemn(GenerationEnd(EndReason.LOST, evidence))",
        "            pass",
        "survivors",
    ),
    Mutant(
        "streams outlive their session",
        "generation",
        '            scope.cancel(reason="the session ended")',
        "            pass",
        "survivors",
    ),
    Mutant(
        "a lost session is deleted",
        "generation",
        "lost = self.end is not None and self.end.reason is EndReason.LOST",
        "lost = False",
        "survivors",
    ),
    Mutant(
        "nobody parts",
        "generation",
        "if exchange is None or exchange.session.id is None or lost:",
        "if True:",
        "lifetime",
    ),
    Mutant(
        "the farewell has no end",
        "generation",
        "with trio.move_on_after(self._around.timeouts.close, shield=True):\n                await",
        "with trio.CancelScope(shield=True):\n                await",
        "lifetime",
    ),
    Mutant(
        "a handshake has no end",
        "generation",
        "with around.patience.move_on_after(around.timeouts.handshake):",
        "with around.patience.move_on_after(1e9):",
        "survivors",
    ),
    Mutant(
        "the caller's cancel is ignored",
        "flight",
        "self.scope = trio.CancelScope()",
        "self.scope = trio.CancelScope(shield=True)",
        "lifetime recovery",
    ),
    Mutant(
        "the server is not told of a cancelled call",
        "generation",
        "        if self.end is None and not self._over and self.session.era",
        "        if False and self.session.era",
        "recovery lifetime",
    ),
    Mutant(
        "the stream's news of a loss is dropped",
        "listening",
        "                        return evidence",
        "                        return None",
        "recovery streams",
    ),
    Mutant(
        "the stream is opened again at once",
        "listening",
        "await trio.sleep(max(cursor.retry or 0.0, REOPEN.delay(failures, random.random)))",
        "await trio.sleep(0)",
        "streams",
    ),
    Mutant(
        "silence hides a dead session",
        "generation",
        "self._around.report(self, Notice.SUSPECT, evidence)",
        "pass",
        "survivors",
    ),
    # -- handshakes ------------------------------------------------------------------------------
    Mutant(
        "initialize carries the old id",
        "session",
        "INITIALIZE_HEADERS: RawHeaders = (ANSWER_TYPES, JSON_TYPE)",
        'INITIALIZE_HEADERS: RawHeaders = (ANSWER_TYPES, JSON_TYPE, (SESSION_HEADER, b"old"))',
        "recovery",
    ),
    Mutant(
        "the new id is not taken",
        "session",
        "            carried.append((SESSION_HEADER, raw_id))",
        "            carried.append((SESSION_HEADER, cls.__dict__.get('_first') or raw_id))\n"
        "            type.__setattr__(cls, '_first', carried[-1][1])",
        "recovery",
    ),
    Mutant(
        "a refusal of initialize is read as its answer",
        "handshake",
        "        if not 200 <= response.status < 300:\n            raise await _refused(response, endpoint)",
        "        if not 200 <= response.status < 300 and response.status != 503:\n"
        "            raise await _refused(response, endpoint)",
        "endings",
    ),
    Mutant(
        "initialized is not said",
        "generation",
        "            await say_initialized(wire, around.endpoint, session)\n",
        "",
        "recovery state_follows",
    ),
    Mutant(
        "a server that is busy is given up for good",
        "handshake",
        "if response.status in RETRYABLE or verdict is Verdict.TRANSIENT:",
        "if False:",
        "recovery endings",
    ),
    Mutant(
        "a stream that ends under initialize is final",
        "handshake",
        "if answer.message is None and not answer.raw and",
        "if False and",
        "found_by_simulation",
    ),
    # -- resuming --------------------------------------------------------------------------------
    Mutant(
        "where a stream broke is forgotten",
        "answers",
        "            self.last_event_id = decoder.last_event_id\n",
        "            pass\n",
        "streams",
    ),
    Mutant(
        "a stream is resumed before the server's time",
        "resuming",
        "        end = await flight.end_within(wait)",
        "        end = await flight.end_within(0)",
        "streams",
    ),
    Mutant(
        "a resumed stream's head is awaited for ever",
        "resuming",
        "        with trio.move_on_after(SILENCE_SECONDS):\n            response",
        "        with trio.move_on_after(1e9):\n            response",
        "found_by_simulation",
    ),
    Mutant(
        "invalidate ends calls that resume",
        "resuming",
        "if end.reason is not EndReason.INVALIDATED:",
        "if True:",
        "found_by_simulation",
    ),
    # -- state that follows ------------------------------------------------------------------------
    Mutant(
        "subscriptions are not restored",
        "restoring",
        'return level + [("resources/subscribe", params) for params in self.subscriptions.values()]',
        "return level",
        "state_follows",
    ),
    Mutant(
        "the log level is not restored",
        "restoring",
        'level = [] if self.log_level is None else [("logging/setLevel", self.log_level)]',
        "level: list[tuple[str, dict[str, Any]]] = []",
        "state_follows",
    ),
    Mutant(
        "what a new session agreed on is not adopted",
        "open",
        "        session.adopt(generation.session.negotiated)\n",
        "",
        "state_follows",
    ),
    # -- bursts ------------------------------------------------------------------------------------
    Mutant(
        "a burst is not held back",
        "pacing",
        "if self._unheard >= BATCH or self._queue:",
        "if False:",
        "pacing",
    ),
    Mutant(
        "who was driving hands on to nobody",
        "pacing",
        "                del self._queue[me]\n                self._wake_first()",
        "                del self._queue[me]",
        "pacing",
    ),
    Mutant(
        "what was held back is written on the lost session",
        "flight",
        "            self.scope.cancel()\n            return\n",
        "            return\n",
        "pacing",
    ),
    Mutant(
        "what was held back counts as sent",
        "dispatcher",
        "        if not outcome.begun:",
        "        if False:",
        "pacing",
    ),
    # -- connections -------------------------------------------------------------------------------
    Mutant(
        "an idle connection is not looked at",
        "connections",
        "if connection.expires_at > now and await self._is_fresh(connection):",
        "if connection.expires_at > now:",
        "connections",
    ),
    Mutant(
        "an idle client holds dead sockets",
        "generation",
        "await wire.tend(self._condemned.wait)",
        "await self._condemned.wait()",
        "lifetime",
    ),
    Mutant(
        "connections outlive their generation",
        "generation",
        "            with trio.CancelScope(shield=True):\n                await wire.aclose()",
        "            pass",
        "lifetime",
    ),
    # -- credentials -------------------------------------------------------------------------------
    Mutant(
        "whoever meets a refused token renews it, though another has",
        "auth",
        "            if run.badge and run.badge != refused:\n                return run.badge, False\n",
        "",
        "auth",
    ),
    Mutant(
        "calls wait for the login of one that needs more",
        "auth",
        "        if self._bearer and context is not None and context.is_token_valid():",
        "        if False:",
        "auth",
    ),
    Mutant(
        "a refused token asks for a login, though it can be refreshed",
        "auth",
        "            context.token_expiry_time = LONG_AGO",
        "            pass",
        "auth",
    ),
    Mutant(
        "a flow's own requests carry the endpoint's cookies",
        "http",
        "if self._cookies is not None and not request.bare:",
        "if self._cookies is not None:",
        "auth",
    ),
    Mutant(
        "an authorization server that is down may have run the call",
        "auth_flow",
        'raise WireError(Stage.NOT_CONNECTED, f"no credentials: {endpoint}: {said}") from error',
        'raise WireError(Stage.WRITTEN, f"no credentials: {endpoint}: {said}") from error',
        "auth",
    ),
    Mutant(
        "an error of the flow quotes what it got",
        "auth_flow",
        "            return kind(redact(str(error)))",
        "            return error",
        "auth",
    ),
    Mutant(
        "a login has no more time than a server",
        "auth_flow",
        "        with self._patience.asking():\n            return",
        "        if True:\n            return",
        "auth",
    ),
    # -- for people ----------------------------------------------------------------------------------
    Mutant(
        "an error shows the session's id",
        "session",
        'return "" if self.id is None else fingerprint(self.id)',
        'return self.id or ""',
        "recovery errors events",
    ),
    Mutant(
        "a group of ours reaches the user",
        "nursery",
        "    except BaseExceptionGroup as group:\n        _reraise(group, raised)",
        "    except ZeroDivisionError:\n        pass",
        "nursery lifetime",
    ),
    # -- the pool ------------------------------------------------------------------------------
    Mutant(
        "a lease does not keep its client",
        "pool_slots",
        "or slot.leases or self._expected",
        "or self._expected",
        "pool_properties pool",
    ),
    Mutant(
        "a call does not keep its client",
        "pool_slots",
        " or not slot.is_quiet:\n            return\n        if slot.retired",
        ":\n            return\n        if slot.retired",
        "pool_properties pool",
    ),
    Mutant(
        "room goes to who came last",
        "pool_slots",
        "first = next(iter(self._queue))",
        "first = next(reversed(self._queue))",
        "pool_properties pool",
    ),
    Mutant(
        "whoever has left is given a client",
        "pool_slots",
        "        if waiter.offer(slot):\n",
        "        waiter.offer(slot)\n        if slot is not None:\n",
        "pool_properties pool",
    ),
    Mutant(
        "a failed connect keeps its room",
        "pool_slots",
        "            waiter.fail(error)\n        self._serve(now)\n",
        "            waiter.fail(error)\n",
        "pool_properties pool",
    ),
    Mutant(
        "all lifetimes are alike",
        "pool_slots",
        "(1 - JITTER * self._draw())",
        "(1 - JITTER / 2)",
        "pool",
    ),
    Mutant(
        "an old client is waited for",
        "pool_slots",
        "slot.dies_at <= now and self._make_room():",
        "slot.dies_at <= now:",
        "pool_properties pool",
    ),
    Mutant("headers are no identity", "pool_keys", "who, *fields))", "who))", "pool"),
    Mutant("equal auth objects are one", "pool_keys", "else str(id(auth))", "else repr(type(auth))", "pool"),
    Mutant(
        "options do not count",
        "pool_keys",
        "for option, value in sorted(options.items())",
        "for option, value in ()",
        "pool",
    ),
    Mutant("fingerprints can be guessed", "pool_keys", "secrets.token_bytes(16)", "bytes(16)", "pool"),
    Mutant(
        "who is cancelled stays in the queue",
        "pool_lease",
        "        self._books.left(self)\n",
        "",
        "pool_properties pool",
    ),
    Mutant(
        "one error for all who waited",
        "pool_lease",
        "self.error = twin(error)\n            self._settle",
        "self.error = error\n            self._settle",
        "pool",
    ),
    Mutant(
        "a client's failure is nobody's",
        "pool_keeper",
        "            holder.end(error)\n",
        "            pass\n",
        "pool",
    ),
    Mutant(
        "a client runs in the context of who asked first",
        "pool_keeper",
        "self._context.run(self._nursery.start_soon, slot.run)",
        "self._nursery.start_soon(slot.run)",
        "pool",
    ),
    Mutant(
        "leases have no time to finish",
        "pool_keeper",
        "move_on_after(self._grace)",
        "move_on_after(0)",
        "pool",
    ),
    Mutant(
        "a connect given up is cut at once",
        "pool_client",
        "self._scope.deadline = trio.current_time() + patience",
        "self._scope.cancel()",
        "pool",
    ),
    # -- below the SDK's own client ------------------------------------------------------------------
    Mutant(
        "a cancellation stays with the SDK's client",
        "bridge",
        'scope.cancel(reason="the caller was cancelled")',
        "pass",
        "sdk_client",
    ),
    Mutant(
        "two sessions' requests have one id at the SDK's",
        "bridge",
        "name = next(self._names)",
        "name = str(context.request_id)",
        "bridge",
    ),
    Mutant(
        "progress under a number of ours",
        "bridge",
        'params = {"progressToken": token, ',
        'params = {"progressToken": 1, ',
        "bridge",
    ),
    Mutant(
        "a hidden listing's error replaces the result",
        "bridge",
        "if not (hidden and isinstance(error, ResilientError)):",
        "if error:",
        "sdk_client",
    ),
    Mutant(
        "every listing is a hidden one",
        "validating",
        "            and last.tool not in self._listed\n",
        "",
        "sdk_client",
    ),
    Mutant(
        "lists are not announced",
        "bridge",
        "            self._put(method, None)",
        "            pass",
        "sdk_client",
    ),
    Mutant(
        "a gap is not told to the SDK's subscription",
        "relistening",
        'self._put(dumped["method"], dumped.get("params"))',
        "pass",
        "sdk_eras",
    ),
    Mutant("what nobody reads piles up", "sdk_streams", "unread >= MAX_UNREAD", "unread < 0", "bridge"),
    Mutant(
        "what failed for both eras is tried for each",
        "greeting",
        "                self._failure = error",
        "                pass",
        "sdk_eras",
    ),
    Mutant(
        "an imitation is believed",
        "errors",
        "carried = error.data.error if isinstance(error.data, _Carried) else None",
        'carried = getattr(error.data, "error", None) or (cls("") if error.code == ERROR_CODE else None)',
        "sdk_client",
    ),
)
