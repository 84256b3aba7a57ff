"""Updates that are cancelled, and rollbacks that fail and go on."""

import asyncio
import json
import threading
from contextlib import closing, suppress
from typing import Any

import pytest

from headrace.platform.cloudformation.loop import StackLoop
from headrace.platform.control.app import ControlApp
from headrace.platform.host.operations import OPERATIONS
from headrace.platform.state.records import Json
from headrace.platform.state.store import open_store
from headrace.serving.wire.aws.errors import AwsError
from tests.platform.control.support import AWS_SCOPE, ListedLogs
from tests.waiting import WAIT_S

from .test_stacks import alarms


class Player:
    """Stacks of alarms, whose calls can be held or refused by the name of an alarm."""

    def __init__(self, control: ControlApp) -> None:
        self.control = control
        self.held, self.refused = "", ""
        self.reached, self.released = threading.Event(), threading.Event()

    def call(self, service: str, name: str, params: Json) -> Json:
        alarm = params.get("AlarmName", "")
        if name == "PutMetricAlarm" and alarm == self.held:
            self.reached.set()
            assert self.released.wait(WAIT_S)
        if name == "PutMetricAlarm" and alarm == self.refused:
            raise AwsError("Refused", "refused by the test")
        return self.control.call(service, name, params)

    def ask(self, name: str, **params: Any) -> Json:
        return self.control.call("cloudformation", name, {"StackName": "s", **params})

    @property
    def state(self) -> str:
        return str(self.ask("DescribeStacks")["Stacks"][0]["StackStatus"])

    async def settled(self) -> str:
        while self.state.endswith("IN_PROGRESS"):
            await asyncio.sleep(0.002)
        return self.state

    def thresholds(self) -> dict[str, float]:
        found = self.control.call("cloudwatch", "DescribeAlarms", {})["MetricAlarms"]
        return {alarm["AlarmName"]: alarm["Threshold"] for alarm in found}


async def test_a_cancelled_update_and_a_failed_rollback_return_to_what_was_there() -> None:
    with closing(open_store("sqlite://")) as store:
        control = ControlApp(store, OPERATIONS, aws_scope=AWS_SCOPE, logs=ListedLogs(), own_images={}, is_strict=False)
        player = Player(control)
        running = asyncio.create_task(StackLoop(store=store, call=player.call, aws_scope=AWS_SCOPE).run())
        try:
            player.ask("CreateStack", TemplateBody=alarms(a=1, b=2))
            assert await player.settled() == "CREATE_COMPLETE"
            await _cancel(player)
            await _fail_rollback(player)
        finally:
            player.released.set()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def _cancel(player: Player) -> None:
    with pytest.raises(AwsError, match="CancelUpdateStack cannot be called from current stack status"):
        player.ask("CancelUpdateStack")
    player.held = "alarm-c"
    after = json.loads(alarms(a=9, c=3))
    after["Resources"]["c"]["DependsOn"] = "a"
    player.ask("UpdateStack", TemplateBody=json.dumps(after))
    assert await asyncio.to_thread(player.reached.wait, WAIT_S)
    player.ask("CancelUpdateStack", ClientRequestToken="t")
    player.ask("CancelUpdateStack", ClientRequestToken="t")  # repeated by a client
    assert player.state == "UPDATE_ROLLBACK_IN_PROGRESS"
    player.released.set()
    assert await player.settled() == "UPDATE_ROLLBACK_COMPLETE"
    assert player.thresholds() == {"alarm-a": 1, "alarm-b": 2}


async def _fail_rollback(player: Player) -> None:
    after = json.loads(alarms(a=9, b=2, d=4))
    after["Resources"]["d"]["DependsOn"] = "a"
    after["Resources"]["d"]["Properties"]["Period"] = 7
    with pytest.raises(AwsError, match="is in UPDATE_ROLLBACK_COMPLETE state and can not continue"):
        player.ask("ContinueUpdateRollback")
    for skipped, threshold in (([], 1.0), (["a"], 9.0)):
        player.held, player.reached, player.released = "alarm-d", threading.Event(), threading.Event()
        player.ask("UpdateStack", TemplateBody=json.dumps(after))
        assert await asyncio.to_thread(player.reached.wait, WAIT_S)
        player.refused = "alarm-a"
        player.released.set()
        assert await player.settled() == "UPDATE_ROLLBACK_FAILED"
        with pytest.raises(AwsError, match=r"ResourcesToSkip has b, which is in the state .*; expected UPDATE_FAILED"):
            player.ask("ContinueUpdateRollback", ResourcesToSkip=["b"])
        player.ask("ContinueUpdateRollback")
        assert await player.settled() == "UPDATE_ROLLBACK_FAILED"
        if not skipped:
            player.refused = ""
        player.ask("ContinueUpdateRollback", ResourcesToSkip=skipped)
        assert await player.settled() == "UPDATE_ROLLBACK_COMPLETE"
        assert player.thresholds() == {"alarm-a": threshold, "alarm-b": 2}
