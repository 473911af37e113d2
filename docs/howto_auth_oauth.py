"""Log in by the browser, then call tools for as long as the tokens can be refreshed."""

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

from trio_mcp_resilient import open_client


class Storage:
    """Keeps them until the program ends. Put them into a keyring to stay logged in."""

    tokens: OAuthToken | None = None
    client_info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client_info = client_info


async def show(url: str) -> None:
    print("Open this page and agree:", url)


async def come_back() -> AuthorizationCodeResult:
    # A desktop application would listen on the port of its redirect_uris instead.
    pasted = await trio.to_thread.run_sync(input, "Paste the address that it led to: ")
    told = parse_qs(urlsplit(pasted.strip()).query)
    code, state, iss = (told.get(name, [None])[0] for name in ("code", "state", "iss"))
    return AuthorizationCodeResult(code=code or "", state=state, iss=iss)


async def main(url: str, **options) -> None:
    provider = OAuthClientProvider(
        url,
        OAuthClientMetadata(
            client_name="my application",
            redirect_uris=[AnyUrl("http://localhost:3000/callback")],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        Storage(),
        redirect_handler=show,
        callback_handler=come_back,
    )
    async with open_client(url, auth=provider, **options) as client:
        for tool in (await client.list_tools()).tools:
            print(tool.name)


if __name__ == "__main__":
    trio.run(main, "https://mcp.example.com/mcp")
