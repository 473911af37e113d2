"""What a server's sentence says about the session: a small grammar, and the signs it finds.

Servers word the same few facts in hundreds of ways. So the patterns below are put together from
kinds of words, not copied from servers, and they are narrow where it matters: only "the session",
"MCP session" and the like are the session. An unknown word before it ("browser session", "tmux
session") makes it another thing of the application's.
"""

from __future__ import annotations

import enum
import functools
import re


class Sign(enum.Enum):
    """Something a text says, or a body shows; the words are those of the documentation."""

    # Found by `signs_of`.
    UNKNOWN_SESSION = "session not found, unknown, invalid, expired"
    ENDED_SESSION = "session terminated, closed, deleted"
    MISSING_ID = "session id missing or required"
    UNINITIALIZED = "not initialized, initialize first"
    NAMES_HEADER = "names `Mcp-Session-Id`"
    ONLY_UNINITIALIZED = "exactly `Server not initialized`"
    LIVING_SESSION = "already exists, stateless, conflict, another user's, protocol version"
    MID_REQUEST = "terminated before the request completed"
    LOGIN = "token, OAuth, login, password"
    ARGUMENT = "argument, parameter, tool"
    OTHER_MISSING = "method, tool, prompt or event not found"
    FITS_404 = "names the session, or says just `not found`"
    NOT_DISPATCHED = "no server available, shutting down, overloaded"
    TOO_MANY_SESSIONS = "too many sessions"
    # Found by the detector in the envelope.
    RESULT = "JSON-RPC result"
    ERROR = "JSON-RPC error"
    ECHOED_ID = "the error names a request"
    METHOD_NOT_FOUND = "code -32601"
    DISPATCHER_CODE = "-32602, -32603, -32002 or -32042, and names a request"
    INTERNAL_ERROR = "code -32603, and names a request"
    INVALID_PARAMS = "code -32602, and names a request"
    CHATTER = "other messages before it"


# The grammar. Texts are normalised first: lower case, ids and numbers are `#`, "can't" is
# "can not", `Mcp-Session-Id` is "session id", brackets are commas.

_BEFORE = (
    r"(?:^|[:;,.!?|-] |[:\n]|\b(?:"
    "mcp|http|streamable|transport|server|client|the|an?|any|no|this|that|your|our|such|its|given"
    "|unknown|unrecogni[sz]ed|invalid|expired|stale|inactive|missing|terminated|closed|non-?existent"
    "|valid|active|existing|known|open|matching|live|current|previous|old|requested|specified|provided"
    "|supplied|header|for|of|with|find|found|locate|get|retrieve|load|look ?up|resolve|resume|restore"
    "|to|from|in|on|error|unauthori[sz]ed|request|or|and|not|because|since|as|but|is|requires?|required"
    "|needs?"
    ") )"
)
_SESSION = rf"{_BEFORE}(?:mcp )?(?:session(?:id| id| identifier| key| header)?|sessionid)\b"
# What may stand between the session and what is said of it: its id, and where it was looked for.
_RATHER = (
    r"(?:[,:]? ?#,?|, (?:id: ?)?\S{1,128},| id:? \S{1,128}"
    r"| (?:header|id|identifier|key|transport|value|with|the|for|given"
    r"|provided|specified|requested|request|this|that|your|client|#),?){0,8}"
)
_AUX = (
    r"(?: (?:is|was|are|has|have|had|been|be|being|could|can|may|might|does|did|do|already|either|appears"
    r"|seems|to|now|or|,))*"
)
_OR = r"(?: or | and |, )"

_UNKNOWN_ADJECTIVE = (
    r"(?:unknown|unrecogni[sz]ed|invalid|expired|stale|inactive|non-?existent|evicted|unregistered)"
)
_UNKNOWN = (
    r"(?:"
    r"not (?:been |be )?(?:found|exist(?:s|ing)?|known|recogni[sz]ed|valid|active|alive|registered"
    r"|established|present|located|live|resolved|tracked)"
    r"|not (?:match|correspond to|refer to|belong to) (?:any|an?)\b"
    r"|no longer (?:exists?|valid|active|available|alive|live|known|open|registered|present|recogni[sz]ed)"
    rf"|{_UNKNOWN_ADJECTIVE}|timed out|gone|not or no longer (?:valid|known|active)"
    r")\b"
)
_ENDED = (
    r"(?:terminated|closed|closing|ended|deleted|destroyed|removed|disposed|disconnected|lost|dead|killed"
    r"|revoked|invalidated|shut ?down|cleaned up|torn down|discarded|reset)\b"
)
# "Invalid session name" is about a name. What may follow the session when an adjective precedes it:
_NO_OTHER_NOUN = (
    r"(?=$|[:;,.!?|\n-]| [#|-]| (?:or|and|for|in|on|at|please|provided|given|supplied|was|is|has)\b)"
)

_GRAMMAR: dict[Sign, tuple[str, ...]] = {
    Sign.UNKNOWN_SESSION: (
        rf"{_SESSION}{_RATHER}{_AUX} {_UNKNOWN}",
        # "Invalid or missing session ID", "unknown session", "invalid session: #".
        rf"\b{_UNKNOWN_ADJECTIVE}(?:{_OR}\w+)? (?:mcp )?(?:session(?: id| identifier| key)?|sessionid)"
        rf"(?: header| id| format)?{_NO_OTHER_NOUN}",
        # "No valid session ID provided", "No active session", "no such session", "No session found".
        r"\bno (?:(?:valid|active|existing|open|matching|such|known|live|current|mcp) )+(?:mcp )?"
        rf"session(?:id| id| identifier)?{_NO_OTHER_NOUN[:-1]}| (?:found|exists?|available|with|header)\b)",
        r"\bno (?:mcp )?session(?:$|[.,;:!]| (?:was )?(?:found|exists?|with|for|available)\b)",
        r"(?:\bnot|\bunable to|\bfailed to|\bfailure to) (?:find|locate|look ?up|resolve|recogni[sz]e) "
        r"(?:(?:the|an?|any|valid|active|matching|your|requested|such|mcp) )*session(?:id| id)?"
        rf"{_NO_OTHER_NOUN[:-1]}| with\b)",
        # The transports a server keeps by session.
        r"\bno (?:active |valid |existing |matching )?transport"
        r"(?:$|[.,;:]| (?:found|exists?|available|for|with)\b)",
        rf"{_BEFORE}transport not found\b",
    ),
    Sign.ENDED_SESSION: (
        rf"{_SESSION}{_RATHER}{_AUX} {_ENDED}",
        r"\b(?:terminated|closed|ended|deleted) (?:mcp )?session(?: id)?" + _NO_OTHER_NOUN,
    ),
    Sign.MISSING_ID: (
        r"\b(?:missing|without|lacks?|lacking|requires?|required|needs?|absent|empty|no)"
        r"(?: or (?:invalid|unknown|expired|empty))?(?: (?:an?|the|your|valid|required|http|mcp))*"
        r" session (?:id|identifier|header)(?: header)?" + _NO_OTHER_NOUN,
        r"\b(?:include|provide|send|supply|set|pass) (?:(?:an?|the|your|valid|http) )*session id\b",
        rf"{_BEFORE}session (?:id|identifier|header)(?: header)?{_AUX} "
        r"(?:missing|required|absent|empty|needed|(?:not|must be|not be) "
        r"(?:provided|present|set|sent|supplied|given|specified|included))\b",
        r"\bmissing (?:\w+ )?headers?[:,]? (?:the )?session id\b",
        r"\bmissing (?:mcp )?session(?:$|[.,;:!])",
        r"\bno sessionid(?:$|[.,;:!])",
    ),
    Sign.UNINITIALIZED: (
        rf"{_BEFORE}(?:mcp )?(?:server|session|transport|protocol)(?: #)?{_AUX} (?:not (?:yet )?(?:been )?"
        r"(?:properly )?|un)initiali[sz]ed\b",
        r"^not initiali[sz]ed\W*$",
        r"\binitialize (?:request )?(?:is )?(?:first|required)\b",
        r"\binitiali[sz]ation (?:is )?required\b",
        r"\b(?:send|call|perform|issue|do|expect(?:ed|s|ing)?|must be|requires?|not) "
        r"(?:(?:an?|the|new|mcp|another) )*initiali[sz](?:e|ation)\b(?! params)",
        r"\bre-?initiali[sz](?:e|ation)\b",
        rf"{_SESSION} (?:must|needs to|has to|should) be (?:re-?)?(?:initiali[sz]ed|established|created)\b",
        r"\binitialize (?:an?|the) (?:new )?(?:mcp )?session\b",
        r"\b(?:start|create|open|establish|begin|obtain|request) a new (?:mcp )?session\b",
    ),
    Sign.ONLY_UNINITIALIZED: (r"^server not initiali[sz]ed\W*$",),
    Sign.LIVING_SESSION: (
        r"\balready (?:exists?|initiali[sz]ed|active|connected|in use|open|registered|has)\b",
        r"\bstateless\b",
        r"\bdifferent session\b",
        r"\bmultiple (?:get|sse|streams?)\b",
        r"\bonly one (?:sse|get|stream|connection)\b",
        r"\bconflicts?\b",
        r"\bmismatch\b",
        r"\bnot match the\b",
        r"\b(?:another|other|different) (?:user|client|owner|tenant|principal)\b",
        r"\bweb ?sockets?\b",
        r"\bprotocol[ -]?version\b",
        r"\bmust not\b",
        r"\bcan ?not provide session\b",
        r"\bif (?:(?:the|your|an?|this) )?(?:mcp )?session\b",
    ),
    Sign.MID_REQUEST: (
        r"\bbefore (?:(?:the|this|your|its) )?(?:request|call|operation|response|tool|result)\b",
        r"\b(?:terminated|closed|ended|expired|lost|deleted|destroyed|invalidated) (?:while|during)\b"
        r"(?! idle| inactiv)",
        r"\b(?:in[- ]flight|in progress|mid-?request|aborted|interrupted|cancell?ed)\b",
    ),
    Sign.LOGIN: (
        r"\b(?:access |refresh |id |session |bearer )?tokens?\b",
        r"\b(?:oauth\d?|jwt|sso|saml|oidc|bearer|credentials?|passwords?|cookies?|csrf)\b",
        r"\b(?:api[ -]?keys?|licen[cs]es?)\b",
        r"\b(?:log|sign)(?:ged|ging)?[ -]?(?:in|on|out)\b",
        r"\b(?:re-?)?authenticat\w*",
        r"\bunauthenticated\b",
    ),
    Sign.ARGUMENT: (
        r"\b(?:arguments?|parameters?|params?|args?|input|fields?|property|schema)\b",
        r"\btools?\b",
        r"\bexecut\w*",
    ),
    Sign.OTHER_MISSING: (
        r"\b(?:method|tool|prompt|event|function|command)s?(?: (?:id|name))?(?:[:,]? #)?(?: [\w./\"'-]+)?"
        rf"{_AUX} not (?:be )?(?:found|exist|known|supported|recogni[sz]ed)\b",
        r"\b(?:unknown|no such|invalid|unsupported) (?:method|tool|prompt|event|function|command)\b",
    ),
    Sign.FITS_404: (
        _SESSION,
        r"^\W*(?:error\W+)?(?:http\W+)?(?:#\W+)?(?:(?:page|resource|endpoint|route|path|url) )?(?:was )?"
        r"not found\W*$",
    ),
    Sign.NOT_DISPATCHED: (
        r"\bno (?:available |healthy |live )?(?:servers?|upstreams?|backends?|instances?"
        r"|endpoints?|workers?)\b"
        r"(?: (?:is|are|available|to)|\W*$)",
        r"\bshutting down\b",
        r"\bdraining\b",
        r"\b(?:rate limit\w*|too many requests|throttl\w+)\b",
        r"\b(?:over ?loaded|at capacity|over capacity|too busy|is busy|server busy|queue is full)\b",
        r"\breset reason: overflow\b",
        r"\b(?:starting up|is starting|not (?:yet )?ready|under maintenance|maintenance mode)\b",
    ),
    Sign.TOO_MANY_SESSIONS: (
        r"\bmax(?:imum)?\b[^.\n]{0,40}\bsessions\b",
        r"\btoo many (?:\w+ ){0,3}sessions\b",
        r"\bsessions?[ -](?:limit|quota|capacity)\b",
        r"\bconcurrent sessions\b",
    ),
}


@functools.cache
def _patterns() -> dict[Sign, re.Pattern[str]]:
    # Compiled at the first refusal: a third of the package's import time, and most never meet one.
    return {sign: re.compile("|".join(f"(?:{one})" for one in ways)) for sign, ways in _GRAMMAR.items()}


def signs_of(text: str) -> frozenset[Sign]:
    """Return what a text says; empty for an empty one."""
    if not text:
        return frozenset()
    normal = _normal(text)
    found = {sign for sign, pattern in _patterns().items() if pattern.search(normal)}
    if _HEADER.search(text):
        found.add(Sign.NAMES_HEADER)
    return frozenset(found)


_HEADER = re.compile(r"\bmcp[-_ ]session[-_ ]?id\b", re.IGNORECASE)
_ERROR_CODE = re.compile(r"^\s*[A-Za-z]+(?:_[A-Za-z]+)+\s*$", re.MULTILINE)
_CLASS_NAME = re.compile(r"\b(?:[A-Z][a-z]+){2,}\b")
_QUOTED_ID = re.compile(r"""(["'`])[^\s"'`]{1,128}\1""")
_ID = re.compile(r"(?<![\w-])(?=[\w-]{0,127}\d)[\w-]{1,128}(?![\w-])")


def _normal(text: str) -> str:
    """Bring a text into the form that the grammar speaks of."""
    text = text.translate(_PLAIN)
    text = _HEADER.sub("session id", text)
    # "SESSION_NOT_FOUND" and "SessionNotFoundException" are words; `session_id` within a
    # sentence stays the name of somebody's argument.
    text = _ERROR_CODE.sub(lambda match: match[0].replace("_", " "), text)
    text = _CLASS_NAME.sub(lambda match: re.sub(r"(?<=[a-z])(?=[A-Z])", " ", match[0]), text)
    text = text.lower().replace("n't", " not").replace("cannot", "can not")
    text = _QUOTED_ID.sub("#", text)
    text = _ID.sub("#", text)
    text = re.sub(r"[\"'`]", "", text)
    text = text.replace("session-id", "session id").replace("/", " or ")
    text = re.sub(r"[ \t\r]+", " ", text)
    return re.sub(r" ?(?:, ?)+", ", ", text).strip(" ,")


_PLAIN = str.maketrans(
    # Typographic quotes, dashes and ellipsis.
    {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2014: "-", 0x2026: "."}
    | dict.fromkeys(map(ord, "([{<)]}>"), ", ")
)
