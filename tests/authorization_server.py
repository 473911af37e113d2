"""An OAuth authorization server in memory, and a scripted MCP server that asks for its tokens.

It grants everything that the SDK's providers ask for, writes down what it was sent, and hands out
secrets that look like real ones. `AuthorizationServer.secrets` has each of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trio
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

from tests.kit import open_server
from trio_mcp_resilient._scripted_http import Connection, Exchange
from trio_mcp_resilient._scripted_stream import memory_connection
from trio_mcp_resilient.testing import ScriptedServer, SeenRequest

HOST = "auth.test"
ISSUER = f"http://{HOST}"
METADATA = "/.well-known/oauth-authorization-server"
RESOURCE_METADATA = "/.well-known/oauth-protected-resource/mcp"


@dataclass(frozen=True)
class Asked:
    """One request that the authorization server got."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        """The body as a form."""
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


@dataclass(frozen=True)
class Told:
    """One answer to give instead of the right one."""

    status: int
    body: Any = field(default_factory=dict[str, Any])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class AuthorizationServer:
    """Metadata, registration, authorization and tokens, for one resource."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.asked: list[Asked] = []
        self.accepted: set[str] = set()
        """The access tokens that the resource takes."""
        self.secrets: set[str] = set()
        self.expires_in: int | None = 3600
        self.instead: dict[str, Told] = {}
        """By path, or by grant: what is answered instead of the right answer."""
        self.gate: trio.Event | None = None
        """While set and not done, token requests wait."""
        self.waiting = trio.Event()
        """Whether one waits there."""
        self.down = False
        self.scopes: dict[str, str] = {}
        """What each access token is good for."""
        self._codes: dict[str, str] = {}
        self._refresh: set[str] = set()
        self._minted = 0
        self._connections: list[Connection] = []
        self._nursery = nursery

    @property
    def grants(self) -> list[str]:
        """The grants of all token requests, in order."""
        return [asked.form["grant_type"] for asked in self.asked if asked.path == "/token"]

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [asked.path for asked in self.asked]

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Give the client's side of a connection."""
        await trio.lowlevel.checkpoint()
        if self.down:
            raise ConnectionRefusedError("down")
        ours, theirs = memory_connection()
        self._connections.append(Connection(len(self._connections), ours, math.inf))
        self._nursery.start_soon(self._connections[-1].serve, self._handle)
        return theirs

    def go_down(self) -> None:
        """Cut every connection and take no other, until `down` is unset."""
        self.down = True
        for connection in self._connections:
            connection.cut("reset")

    def accepts(self, seen: SeenRequest) -> bool:
        """Whether a request to the resource carries a token of ours."""
        return seen.headers.get("authorization", "").removeprefix("Bearer ") in self.accepted

    def scope_of(self, seen: SeenRequest) -> list[str]:
        """What a request to the resource is allowed to do."""
        return self.scopes.get(seen.headers.get("authorization", "").removeprefix("Bearer "), "").split()

    def revoke(self) -> None:
        """Let the resource take none of the access tokens that are about."""
        self.accepted.clear()

    def forget(self) -> None:
        """Refuse the refresh tokens that are about."""
        self._refresh.clear()

    def token(self) -> str:
        """A token that was never granted, but is as secret as one that was."""
        return self._mint("stray")

    def agree(self, url: str) -> AuthorizationCodeResult:
        """Be the user who opens the page and says yes."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        code = self._mint("code")
        self._codes[code] = query.get("scope", "")
        self.secrets.add(query["state"])
        return AuthorizationCodeResult(code=code, state=query["state"], iss=None)

    def _mint(self, kind: str) -> str:
        self._minted += 1
        secret = f"{kind}-{sha256(f'{kind} {self._minted}'.encode()).hexdigest()}"
        self.secrets.add(secret)
        return secret

    async def _handle(self, exchange: Exchange) -> None:
        path = exchange.target.partition("?")[0]
        asked = Asked(exchange.http_method, path, exchange.headers, exchange.body)
        self.asked.append(asked)
        if self.gate is not None and path == "/token":
            self.waiting.set()
            await self.gate.wait()
        told = self.instead.get(path) or self._answer(asked)
        body = told.body if isinstance(told.body, bytes) else json.dumps(told.body).encode()
        await exchange.respond(told.status, {"content-type": "application/json", **told.headers}, body)

    def _answer(self, asked: Asked) -> Told:
        match asked.path:
            case "/.well-known/oauth-authorization-server":
                return Told(
                    200,
                    {
                        "issuer": ISSUER,
                        "authorization_endpoint": f"{ISSUER}/authorize",
                        "token_endpoint": f"{ISSUER}/token",
                        "registration_endpoint": f"{ISSUER}/register",
                        "response_types_supported": ["code"],
                        "code_challenge_methods_supported": ["S256"],
                    },
                )
            case "/register":
                wanted = json.loads(asked.body)
                given = {"client_id": "app", "client_secret": self._mint("secret")}
                method = {"token_endpoint_auth_method": "client_secret_post"}
                return Told(201, {**wanted, **given, **method})
            case "/token" | "/moved":
                return self._grant(asked)
            case _:
                return Told(404)

    def _grant(self, asked: Asked) -> Told:
        form = asked.form
        for name in ("code_verifier", "client_secret", "assertion", "client_assertion"):
            if name in form:
                self.secrets.add(form[name])
        grant = form["grant_type"]
        if grant in self.instead:
            return self.instead[grant]
        scope = form.get("scope", "")
        if grant == "refresh_token":
            if form["refresh_token"] not in self._refresh:
                description = f"the refresh token {form['refresh_token']} is not known"
                return Told(400, {"error": "invalid_grant", "error_description": description})
            # Rotated: each is good once.
            self._refresh.discard(form["refresh_token"])
        elif grant == "authorization_code":
            if form["code"] not in self._codes:
                return Told(400, {"error": "invalid_grant"})
            scope = self._codes.pop(form["code"])
        access, refresh = self._mint("access"), self._mint("refresh")
        self.accepted.add(access)
        self.scopes[access] = scope
        token: dict[str, Any] = {"access_token": access, "token_type": "Bearer"}
        if scope:
            token["scope"] = scope
        if self.expires_in is not None:
            token["expires_in"] = self.expires_in
        if grant != "client_credentials":
            self._refresh.add(refresh)
            token["refresh_token"] = refresh
        return Told(200, token)


class Storage:
    """Tokens and a registration, for as long as the test runs."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client_info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        await trio.lowlevel.checkpoint()
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        await trio.lowlevel.checkpoint()
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        await trio.lowlevel.checkpoint()
        return self.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await trio.lowlevel.checkpoint()
        self.client_info = client_info


@dataclass
class Guarded:
    """An MCP server that takes no request without a token, and everything around it."""

    server: ScriptedServer
    auth: AuthorizationServer
    storage: Storage = field(default_factory=Storage)
    hosts: list[str] = field(default_factory=list[str])
    logins: list[str] = field(default_factory=list[str])
    """The pages that a person was sent to."""
    patience: float = 0.0
    """Seconds that a person takes to agree."""

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """Connect to whichever of the two is meant."""
        self.hosts.append(host)
        return await (self.auth.connect if host == HOST else self.server.connect)(host, port)

    def provider(self, **options: Any) -> OAuthClientProvider:
        """A provider of the SDK's, with a person who always agrees."""

        async def show(url: str) -> None:
            self.logins.append(url)
            await trio.sleep(self.patience)

        async def come_back() -> AuthorizationCodeResult:
            await trio.lowlevel.checkpoint()
            return self.auth.agree(self.logins[-1])

        metadata = OAuthClientMetadata(
            client_name="tests",
            redirect_uris=[AnyUrl("http://localhost:3000/callback")],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        )
        return OAuthClientProvider(self.server.url, metadata, self.storage, show, come_back, **options)

    def refuse(self, status: int = 401, challenge: str = "", **options: Any) -> None:
        """Refuse what comes without a token, or whatever `when` in the options says."""
        metadata = f'resource_metadata="http://{urlsplit(self.server.url).netloc}{RESOURCE_METADATA}"'
        told = f"Bearer {challenge}{', ' if challenge else ''}{metadata}"
        options.setdefault("when", lambda seen: not self.auth.accepts(seen))
        options.setdefault("times", math.inf)
        body = {"error": "refused"}
        self.server.answer(status, body, headers={"www-authenticate": told}, **options)


@asynccontextmanager
async def open_guarded() -> AsyncGenerator[Guarded, None]:
    """Both servers, up and strict."""
    async with open_server() as server, trio.open_nursery() as nursery:
        guarded = Guarded(server, AuthorizationServer(nursery))
        server.answer(
            200,
            {"resource": server.url, "authorization_servers": [ISSUER]},
            when=lambda seen: seen.target == RESOURCE_METADATA,
            times=math.inf,
        )
        guarded.refuse()
        yield guarded
        nursery.cancel_scope.cancel()
