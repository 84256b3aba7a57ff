"""Warm-up of a started platform, without which the first calls, and streams beside them, would be delayed."""

import asyncio

from headrace.core.interpreter import keep_from_collector
from headrace.wire.aws import services


async def warm_up() -> None:
    """Load the models of AWS's services, which live as long as the process."""
    for service in services.MODELLED:
        await asyncio.to_thread(services.operation_names, service)
    keep_from_collector()
