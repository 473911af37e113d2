"""A Trio-native MCP client that outlives its sessions.

The package from the ground up; every module imports only what stands above it here
(`tests/test_layers.py` keeps this true):

- words: `_errors`, `_states`, `_events`, `_policy`, `_outcome`, `_statistics`, `_endpoint`,
  `_secrets`, `_wire`
- sans-IO: `_jsonrpc`, `_sse`, `_wording`, `_body`, `_detector`, `_sdk_errors`, `_eras`, `_judge`,
  `_envelope`, `_session`, `_restoring`, `_validating`, `_schemas`
- HTTP: `_http_errors`, `_dial`, `_http_messages`, `_http11`, `_spares`, `_connections`, `_httpx_transport`,
  `_patience`, `_auth_words`, `_auth_flow`, `_auth`, `_cookies`, `_inflating`, `_following`, `_plain_wire`,
  `_httpx_wire`, `_http`
- one session: `_nursery`, `_answers`, `_handshake`, `_discovery`, `_negotiation`, `_flight`, `_pacing`,
  `_exchange`, `_listening`, `_resuming`, `_inbound`, `_router`, `_generation`
- whoever watches: `_instruments`, `_instrument_logging`, `otel`
- all of them: `_series`, `_succession`, `_supervisor`, `_call`, `_sending`, `_dispatcher`, `_assembly`
- what people hold: `_rounds`, `_subscription`, `_client`, `_open`
- for people who hold the SDK's client: `_sdk_streams`, `_greeting`, `_relistening`, `_bridge`,
  `_sdk_transport`
- many of those: `_pool_events`, `_pool_statistics`, `_pool_keys`, `_pool_slot`, `_pool_slots`,
  `_crowd`, `_pool_options`, `_pool_client`, `_pool_lease`, `_pool_keeper`, `_pool`
- re-exported here; `testing`
- the command line: `_probe_report`, `_probe`, `_cli_output`, `_cli_options`, `_cli_requests`, `_watch`,
  `_cli_parser`, `_cli_view`, `_cli_watch`, `_cli_probe`, `_cli_demo`, `_cli`, `__main__`
"""

from trio_mcp_resilient._client import Client as Client
from trio_mcp_resilient._detector import Verdict as Verdict
from trio_mcp_resilient._detector import classify as classify
from trio_mcp_resilient._errors import ConnectionLost as ConnectionLost
from trio_mcp_resilient._errors import Evidence as Evidence
from trio_mcp_resilient._errors import GaveUp as GaveUp
from trio_mcp_resilient._errors import HandshakeFailed as HandshakeFailed
from trio_mcp_resilient._errors import OutcomeUnknown as OutcomeUnknown
from trio_mcp_resilient._errors import PoolFull as PoolFull
from trio_mcp_resilient._errors import Recovery as Recovery
from trio_mcp_resilient._errors import RequestRefused as RequestRefused
from trio_mcp_resilient._errors import ResilientError as ResilientError
from trio_mcp_resilient._errors import SessionLost as SessionLost
from trio_mcp_resilient._events import Event as Event
from trio_mcp_resilient._events import Flapping as Flapping
from trio_mcp_resilient._events import OutcomeLost as OutcomeLost
from trio_mcp_resilient._events import RecoveryFailed as RecoveryFailed
from trio_mcp_resilient._events import Resent as Resent
from trio_mcp_resilient._events import RestoreFailed as RestoreFailed
from trio_mcp_resilient._events import SessionEnded as SessionEnded
from trio_mcp_resilient._events import SessionStarted as SessionStarted
from trio_mcp_resilient._events import StateChanged as StateChanged
from trio_mcp_resilient._events import StreamGap as StreamGap
from trio_mcp_resilient._events import ToolsChanged as ToolsChanged
from trio_mcp_resilient._httpx_transport import TrioHTTPTransport as TrioHTTPTransport
from trio_mcp_resilient._instrument_logging import LoggingInstrument as LoggingInstrument
from trio_mcp_resilient._instruments import Instrument as Instrument
from trio_mcp_resilient._instruments import RequestInstrument as RequestInstrument
from trio_mcp_resilient._judge import Facts as Facts
from trio_mcp_resilient._open import open_client as open_client
from trio_mcp_resilient._policy import Backoff as Backoff
from trio_mcp_resilient._policy import Resend as Resend
from trio_mcp_resilient._pool import Pool as Pool
from trio_mcp_resilient._pool import open_pool as open_pool
from trio_mcp_resilient._pool_events import ClientClosed as ClientClosed
from trio_mcp_resilient._pool_events import ClientEvent as ClientEvent
from trio_mcp_resilient._pool_events import ClientOpened as ClientOpened
from trio_mcp_resilient._pool_events import Closing as Closing
from trio_mcp_resilient._pool_events import PoolEvent as PoolEvent
from trio_mcp_resilient._pool_options import ClientOptions as ClientOptions
from trio_mcp_resilient._pool_statistics import PoolStatistics as PoolStatistics
from trio_mcp_resilient._sdk_errors import is_session_terminated as is_session_terminated
from trio_mcp_resilient._sdk_transport import resilient_transport as resilient_transport
from trio_mcp_resilient._states import State as State
from trio_mcp_resilient._statistics import Statistics as Statistics
from trio_mcp_resilient._subscription import Subscription as Subscription


def _show_the_public_path() -> None:
    """Make tracebacks, pickles and the docs say `trio_mcp_resilient.X`, where people import X from."""
    for name, value in list(globals().items()):
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(f"{__name__}._"):
            value.__module__ = __name__


_show_the_public_path()
del _show_the_public_path
