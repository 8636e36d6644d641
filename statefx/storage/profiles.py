"""Credentials of a profile in ``~/.aws``, which obstore does not read: boto3 does, where it is installed."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from statefx.errors import StorageError

KEPT = timedelta(minutes=10)
"""How long what a profile gives is used. obstore asks again five minutes before the end. The least that a role can be
assumed for is 15 minutes, and a file that somebody has written anew is read."""

_OTHERS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that say where other credentials are: obstore reads these, and boto3 too would take them first."""


def has_profile() -> bool:
    """Tell whether credentials are those of a profile: one is named, or there is a file and nothing else is said."""
    if any(os.environ.get(name) for name in _OTHERS):
        return False
    return bool(os.environ.get("AWS_PROFILE")) or os.path.isfile(_file())


def _file() -> str:
    return os.path.expanduser(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")


class ProfileCredentials:
    """What obstore asks for credentials, whenever those that it has are about to expire.

    obstore has a provider of its own for boto3, which keeps the keys that a file had at first. Each call here reads the
    files anew.

    Attributes
    ----------
    config : Mapping
        What else the profile says of the store: the region.

    Raises
    ------
    StorageError
        boto3 is missing, or the profile.
    """

    def __init__(self) -> None:
        region = self._session().region_name
        self.config = {"region": region} if region else {}

    def __call__(self) -> dict[str, Any]:
        """Return the credentials as they are now."""
        found = self._session().get_credentials()
        if found is None:
            raise StorageError(f"{_named()} has no credentials: see `aws configure`")
        keys = found.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + KEPT,
        }

    @staticmethod
    def _session() -> Any:
        try:
            import boto3  # noqa: PLC0415 - an extra of its own: obstore alone reads all but profiles
            from botocore.exceptions import ProfileNotFound  # noqa: PLC0415
        except ImportError as error:
            raise StorageError(
                f"{_named()} is read by boto3, which is not installed: pip install 'statefx[aws]', on the executors "
                "too, or give the credentials in another way"
            ) from error
        try:
            return boto3.Session()
        except ProfileNotFound as error:
            raise StorageError(f"{error}: AWS_PROFILE names a profile of ~/.aws on this machine") from None


def _named() -> str:
    profile = os.environ.get("AWS_PROFILE")
    return f"the profile {profile!r} of AWS_PROFILE" if profile else f"the default profile in {_file()}"
