"""What the suite's OAuth scenarios ask of an application: a token store, a browser, the SDK's providers."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.utils import build_protected_resource_metadata_discovery_urls
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl

REDIRECT = "http://localhost:3000/callback"
"""Never fetched: the browser reads the code from the redirect itself."""
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
"""The suite's authorization server knows it by name and does not fetch it."""


class MemoryStorage:
    """Tokens and a registration, forgotten at exit."""

    def __init__(self, client_info: OAuthClientInformationFull | None = None) -> None:
        self._tokens: OAuthToken | None = None
        self._client_info = client_info

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client_info = client_info


class Browser:
    """A user who agrees at once: it visits the page and keeps what the redirect back says."""

    def __init__(self) -> None:
        self._said: dict[str, list[str]] = {}

    async def visit(self, url: str) -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            response = await http.get(url, follow_redirects=False)
        self._said = parse_qs(urlsplit(response.headers["location"]).query)

    async def come_back(self) -> AuthorizationCodeResult:
        code, state, iss = (self._said.get(name, [None])[0] for name in ("code", "state", "iss"))
        return AuthorizationCodeResult(code=code or "", state=state, iss=iss)


async def auth_for(scenario: str, context: dict[str, Any], url: str) -> httpx2.Auth:
    """Choose the flow that a scenario is about."""
    match scenario:
        case "auth/client-credentials-jwt":
            return _signed_credentials(context, url)
        case "auth/client-credentials-basic":
            return ClientCredentialsOAuthProvider(
                url, MemoryStorage(), context["client_id"], context["client_secret"]
            )
        case "auth/enterprise-managed-authorization":
            return await _enterprise(context, url)
        case _:
            return _authorization_code(context, url)


def _authorization_code(context: dict[str, Any], url: str) -> httpx2.Auth:
    browser = Browser()
    return OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="trio_mcp_resilient conformance client",
            redirect_uris=[AnyUrl(REDIRECT)],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        MemoryStorage(_registered(context)),
        browser.visit,
        browser.come_back,
        client_metadata_url=CLIENT_METADATA,
    )


def _registered(context: dict[str, Any]) -> OAuthClientInformationFull | None:
    """Return the registration that the scenario has made beforehand, if it has."""
    if "client_id" not in context:
        return None
    secret = context.get("client_secret")
    return OAuthClientInformationFull(
        client_id=context["client_id"],
        client_secret=secret,
        redirect_uris=[AnyUrl(REDIRECT)],
        token_endpoint_auth_method="client_secret_basic" if secret else "none",
    )


def _signed_credentials(context: dict[str, Any], url: str) -> httpx2.Auth:
    signed = SignedJWTParameters(
        issuer=context["client_id"],
        subject=context["client_id"],
        signing_algorithm=context.get("signing_algorithm", "ES256"),
        signing_key=context["private_key_pem"],
    )
    return PrivateKeyJWTOAuthProvider(
        url,
        MemoryStorage(),
        context["client_id"],
        assertion_provider=signed.create_assertion_provider(),
    )


async def _enterprise(context: dict[str, Any], url: str) -> httpx2.Auth:
    """The identity provider's token is exchanged for an assertion, and that for an access token."""
    async with httpx.AsyncClient(trust_env=False) as http:
        described = await http.get(build_protected_resource_metadata_discovery_urls(None, url)[0])

    async def assertion(audience: str, resource: str) -> str:
        asked = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "subject_token": context["idp_id_token"],
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "audience": audience,
            "resource": resource,
            "client_id": context["idp_client_id"],
        }
        async with httpx.AsyncClient(trust_env=False) as http:
            response = await http.post(context["idp_token_endpoint"], data=asked)
        token: str = response.raise_for_status().json()["access_token"]
        return token

    return IdentityAssertionOAuthProvider(
        server_url=url,
        storage=MemoryStorage(),
        client_id=context["client_id"],
        client_secret=context["client_secret"],
        issuer=described.json()["authorization_servers"][0],
        assertion_provider=assertion,
        token_endpoint_auth_method="client_secret_basic",
    )
