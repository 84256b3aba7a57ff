"""Instances and scaling set in the page, in a real browser, against the real Application Auto Scaling."""

from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from headrace.platform.cloudwatch.metrics.metric import Metric
from tests.platform.autoscaling.support import World
from tests.platform.host.fake_platform import FakePlatform
from tests.platform.host.fake_resources import NOW_S, Refused

from .page import Console
from .played import show

pytestmark = pytest.mark.browser
CONCURRENT = "SageMakerVariantConcurrentRequestsPerModelHighResolution"


@pytest.fixture
def world() -> Iterator[World]:
    """An endpoint that is not scaled."""
    world = World(now_s=NOW_S, endpoint="chat", variant="AllTraffic")
    yield world
    world.close()


@pytest.fixture
def page(driver: webdriver.Chrome, platform: FakePlatform, world: World) -> Console:
    show(platform, world)
    opened = Console(driver, platform, "#/chat/scaling")
    opened.until(lambda: opened.find("#scaling-min").is_displayed(), "the form")
    return opened


def target_of(world: World) -> tuple[int, int] | None:
    found = world.call("DescribeScalableTargets", ServiceNamespace="sagemaker")["ScalableTargets"]
    return (found[0]["MinCapacity"], found[0]["MaxCapacity"]) if found else None


def policies_of(world: World) -> dict[str, dict[str, Any]]:
    found = world.call("DescribeScalingPolicies", ServiceNamespace="sagemaker")["ScalingPolicies"]
    return {policy["PolicyName"]: policy for policy in found}


def tracking_of(world: World, policy: str) -> dict[str, Any]:
    config: dict[str, Any] = policies_of(world)[policy]["TargetTrackingScalingPolicyConfiguration"]
    return config


def test_scaling_to_zero_is_set_changed_and_ended(page: Console, world: World) -> None:
    assert (target_of(world), page.find("#scaling-off").is_displayed()) == (None, False)
    page.fill("#scaling-min", "0")
    page.fill("#scaling-max", "3")
    page.fill("#scaling-idle", "300")
    page.click("#autoscaling-form [type=submit]")
    page.until(lambda: page.find("#scaling-off").is_displayed(), "the registration")
    assert page.text("#scaling-facts") == "Scaled between 0 and 3 instances by headrace-idle and headrace-load"
    assert target_of(world) == (0, 3)
    load = tracking_of(world, "headrace-load")
    assert (load["TargetValue"], load["PredefinedMetricSpecification"]) == (4.0, {"PredefinedMetricType": CONCURRENT})
    [alarm] = world.call("DescribeAlarms", "cloudwatch", AlarmNamePrefix="headrace-idle")["MetricAlarms"]
    assert alarm["EvaluationPeriods"] == 30
    page.until(lambda: page.find("#scaling-idle").get_attribute("value") == "300", "the idle time as it was set")
    assert page.texts("#scaling-metric option")[:2] == [
        "Concurrent requests per instance",
        "Requests per minute per instance",
    ]
    page.click("#scaling-metric option[value=kv]")
    assert page.find("#scaling-value").get_attribute("value") == "60"
    page.fill("#scaling-idle", "")
    page.click("#autoscaling-form [type=submit]")
    page.until(lambda: list(policies_of(world)) == ["headrace-load"], "one policy")
    changed = tracking_of(world, "headrace-load")
    assert changed["CustomizedMetricSpecification"]["MetricName"] == "KVCacheUtilization"
    assert changed["ScaleInCooldown"] == 120
    page.until(lambda: page.text("#scaling-facts").endswith("by headrace-load"), "the new state")
    page.click("#scaling-off")
    page.click("#scaling-off-form .danger")
    page.until(lambda: target_of(world) is None, "the end")
    page.until(lambda: not page.find("#scaling-off").is_displayed(), "the form without it")


def test_the_number_of_instances_is_set(page: Console, platform: FakePlatform) -> None:
    page.until(lambda: page.find("#capacity-value").get_attribute("value") == "2", "the number that was set last")
    page.fill("#capacity-value", "3" + Keys.ENTER)
    page.until(lambda: platform.asked("UpdateEndpointWeightsAndCapacities"), "the call")
    wanted = [{"VariantName": "AllTraffic", "DesiredInstanceCount": 3}]
    assert platform.asked("UpdateEndpointWeightsAndCapacities") == [
        {"EndpointName": "chat", "DesiredWeightsAndCapacities": wanted}
    ]


def test_refusals_are_shown_at_the_form(page: Console, platform: FakePlatform) -> None:
    platform.refusals["UpdateEndpointWeightsAndCapacities"] = Refused("Cannot update in-progress endpoint.")
    page.fill("#capacity-value", "2" + Keys.ENTER)
    page.until(lambda: page.text("#capacity-error") == "Cannot update in-progress endpoint.", "the refusal")
    page.fill("#scaling-min", "5")
    page.fill("#scaling-max", "2" + Keys.ENTER)
    page.until(lambda: "expected a minimum" in page.text("#autoscaling-error"), "the check")


def test_a_policy_of_the_user_keeps_its_metric_and_name(page: Console, world: World) -> None:
    world.register(1, 2)
    dimensions = [{"Name": "EndpointName", "Value": "chat"}]
    own = {"MetricName": "Depth", "Namespace": "mine", "Dimensions": dimensions, "Statistic": "Maximum"}
    config = {"TargetValue": 7.0, "CustomizedMetricSpecification": own}
    world.put_policy("mine", PolicyType="TargetTrackingScaling", TargetTrackingScalingPolicyConfiguration=config)
    page.until(lambda: page.find("#scaling-value").get_attribute("value") == "7", "its target")
    page.fill("#scaling-value", "9" + Keys.ENTER)
    page.until(lambda: tracking_of(world, "mine")["TargetValue"] == 9.0, "the new target")
    assert list(policies_of(world)) == ["mine"]
    assert tracking_of(world, "mine")["CustomizedMetricSpecification"] == own


def test_tokens_queue_and_kv_cache_of_all_workers_are_drawn(
    driver: webdriver.Chrome, platform: FakePlatform, world: World
) -> None:
    numbers = {"CurrentInstanceCount": 2, "OutputTokensPerSecond": 20, "QueueDepth": 1.5, "KVCacheUtilization": 25}
    dimensions = (("EndpointName", "chat"), ("VariantName", "AllTraffic"))
    for second in range(0, 300, 10):
        for name, value in numbers.items():
            metric = Metric(namespace="/aws/sagemaker/Endpoints", name=name, dimensions=dimensions)
            world.series.put(metric, value, now_s=NOW_S - second)
    show(platform, world)
    page = Console(driver, platform, "#/chat")
    page.until(lambda: page.find("#serving").is_displayed(), "the charts")
    labels = page.attributes("#serving .chart", "aria-label")
    assert "generated: now 40, at most 40" in labels[0]
    assert "in queues: now 3.0" in labels[1]
    assert "mean: now 25 %" in labels[2]
    page.click("#tab-logs")
    page.until(lambda: not page.find("#serving").is_displayed(), "another tab")
