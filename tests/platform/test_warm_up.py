"""The models of AWS's services are loaded before the first call."""

import asyncio
import gc

from headrace.platform.life import warm_up
from headrace.wire.aws import services


def test_all_models_are_loaded_and_not_visited_by_the_garbage_collector() -> None:
    try:
        asyncio.run(warm_up())
        before = services.model.cache_info().misses
        for service in services.MODELLED:
            assert services.operation_names(service)
        assert services.model.cache_info().misses == before
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
