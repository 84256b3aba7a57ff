"""
Take every screenshot of the docs: the chat page and the console, 1440 and 390 pixels wide, light and dark.

    python scripts/screenshot.py                      # all, into docs/images
    python scripts/screenshot.py chat console-home    # some, by the beginning of their names

It serves smollm2, starts a platform with endpoints of it, and sends these some load; only the hour of autoscaling is
played, by the tests' clock. It needs Chromium with its driver, and the packages of the group `tests`.
"""

import argparse
import io
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser import Page, chromium  # noqa: E402 -- after the path
from tests.e2e.conftest import serve  # noqa: E402
from tests.platform.host.console.played import played_world, show  # noqa: E402
from tests.platform.host.fake_platform import FakePlatform, serving  # noqa: E402
from tests.platform.host.running import IMAGE, Running, up  # noqa: E402

from headrace.platform.host.access_keys import AccessKeys  # noqa: E402 -- after the path
from headrace.platform.state.store import open_store  # noqa: E402
from headrace.serving.wire.key_limits import KeyLimits  # noqa: E402

WIDE, PHONE = (1440, 900), (390, 844)
PHONE_SCALE = 1.5
GAP = 24
PHONES_IN_A_ROW = 3
NUM_COLOURS = 256
NUM_DISTINCT = 96
"""Colours of the palette that differ clearly: without them code lost its colours in shades of the letters' edges."""
MIN_DIFFERENCE = 12
LOAD_S = 150
QUESTION = "Give me three tips for a good night's sleep, as a list."
CODE_QUESTION = "Write a Python function that reverses a string, and explain it briefly."
SEED = 6
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?", "Tell me a story.", "What is a river?")
MODEL = "smollm2"
CODE_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-inference:2.6.0-cpu-py312"
SLOW_CODE = """import time

def model_fn(folder):
    for part in range(1, 121):
        print(f"reading part {part} of 120", flush=True)
        time.sleep(5)
"""


@dataclass(frozen=True)
class Scene:
    """A page in one state."""

    name: str
    url: str
    until: Callable[[Page], object]
    """Returns whether the page shows everything."""
    act: Callable[[Page], None] = lambda _: None
    """What a user does before."""
    is_wide: bool = True
    is_on_phone: bool = True


class Camera:
    """A browser that takes pictures of scenes in a theme and a size."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def take(self, scene: Scene) -> dict[str, list[Image.Image]]:
        """Save the wide pictures of a scene; return those of a phone by theme."""
        phones: dict[str, list[Image.Image]] = {"light": [], "dark": []}
        for theme, taken in phones.items():
            suffix = "" if theme == "light" else "-dark"
            if scene.is_wide:
                save(self.picture(scene, WIDE, theme), self.folder / f"{scene.name}{suffix}.png")
            if scene.is_on_phone:
                taken.append(self.picture(scene, PHONE, theme))
        return phones

    def picture(self, scene: Scene, size: tuple[int, int], theme: str) -> Image.Image:
        """Open a scene in a browser that has stored nothing, and take its picture."""
        is_phone = size == PHONE
        metrics = {"width": size[0], "height": size[1], "mobile": is_phone}
        scale = {"deviceScaleFactor": PHONE_SCALE if is_phone else 1}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**metrics, **scale})
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        stored = {"origin": scene.url.split("#")[0], "storageTypes": "indexeddb,local_storage"}
        self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", stored)
        self.driver.get("about:blank")  # so that a change of the hash loads the page again
        self.driver.get(scene.url)
        page = Page(self.driver)
        scene.act(page)
        page.until(lambda: scene.until(page), f"{scene.name} as it should look")
        page.run("document.activeElement?.blur()")
        return Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")


def palette_of(picture: Image.Image) -> list[tuple[int, int, int]]:
    """Return frequent colours that differ clearly, then the most frequent others."""
    counted = picture.getcolors(picture.width * picture.height) or []
    frequent = [colour for _, colour in sorted(counted, reverse=True)]
    distinct: list[tuple[int, int, int]] = []
    for colour in frequent:
        if len(distinct) < NUM_DISTINCT and all(difference(colour, other) > MIN_DIFFERENCE for other in distinct):
            distinct.append(colour)
    return list(dict.fromkeys([*distinct, *frequent]))[:NUM_COLOURS]


def difference(colour: tuple[int, int, int], other: tuple[int, int, int]) -> int:
    """Return the largest difference of a channel."""
    return max(abs(first - second) for first, second in zip(colour, other, strict=True))


def save(picture: Image.Image, target: Path) -> None:
    """Save a picture with a palette, so that backgrounds and marks keep their colours exactly."""
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in palette_of(picture) for channel in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.name}: {target.stat().st_size // 1024} KiB", flush=True)


def in_rows(pictures: Sequence[Image.Image], background: str) -> Image.Image:
    """Put pictures of equal size into rows."""
    across, down = pictures[0].width + GAP, pictures[0].height + GAP
    num_rows, num_columns = -(-len(pictures) // PHONES_IN_A_ROW), min(len(pictures), PHONES_IN_A_ROW)
    sheet = Image.new("RGB", (num_columns * across - GAP, num_rows * down - GAP), background)
    for place, picture in enumerate(pictures):
        row, column = divmod(place, PHONES_IN_A_ROW)
        sheet.paste(picture, (column * across, row * down))
    return sheet


def ask(question: str) -> Callable[[Page], None]:
    """Return what a user does who asks a question, with a seed, so that the picture has the same answer each time."""

    def act(page: Page) -> None:
        page.until(lambda: page.find("#prompt").is_displayed(), "the field for a question")
        page.run(
            "const seed = document.getElementById('seed'); seed.value = arguments[0];"
            "seed.dispatchEvent(new Event('input'))",
            SEED,
        )
        page.find("#prompt").send_keys(question + Keys.ENTER)
        page.until(lambda: is_answered(page), "the answer")

    return act


def chat(page: Page) -> None:
    """Hold two conversations; the second is open."""
    page.until(lambda: page.text("#model") == MODEL, "the model's name")
    ask(QUESTION)(page)
    page.run("document.getElementById('new').click()")  # without the pointer, which would stay on it
    ask(CODE_QUESTION)(page)


def chat_and_list(page: Page) -> None:
    """Hold two conversations, and open their list on a phone."""
    chat(page)
    page.click("#history-toggle")


def is_answered(page: Page) -> bool:
    """Return whether the answer is complete."""
    return bool(page.all(".facts")) and not page.all(".streaming, .waiting")


def has_coloured_code(page: Page) -> bool:
    """Return whether the code of the answer has its colours."""
    return bool(page.all(".hljs-keyword"))


def has_failure(page: Page) -> bool:
    """Return whether an endpoint shows why it failed, and the list too, which a phone hides."""
    return bool(page.all("#failure-lines > div")) and bool(page.all("#rows .why:not(:empty)"))


def console_scenes(url: str) -> list[Scene]:
    """Return the scenes of a console with a busy endpoint and one that failed."""
    base = f"{url}/console"
    return [
        Scene("console-home", base, lambda page: page.all("#tiles .tile") and page.all("#stored table")),
        Scene("console", f"{base}#/chat", lambda page: page.all("#serving .lines path[d^=M]")),
        Scene("console-playground", f"{base}#/chat/playground", is_answered, ask(QUESTION)),
        Scene("console-failed", f"{base}#/draft", has_failure),
        Scene("console-deploy", base, lambda page: page.all(".choice"), lambda page: page.click("#deploy")),
        Scene("console-model", f"{base}#models/chat", lambda page: page.all("#model-environment table")),
    ]


def creating_scene(url: str) -> Scene:
    """Return the scene of an endpoint whose code is loading."""
    has_log = "#progress-lines .what:nth-last-child(1)"
    return Scene("console-creating", f"{url}/console#/summaries", lambda page: "part" in page.text(has_log))


def chat_scenes(url: str) -> list[Scene]:
    """Return the scenes of the chat page: an answer, and, on a phone, also the first sight and the list."""
    return [
        Scene("chat-welcome", url, lambda page: page.text("#model") == MODEL, is_wide=False),
        Scene("chat", url, has_coloured_code, chat),
        Scene("chat-list", url, lambda page: page.find("#history").is_displayed(), chat_and_list, is_wide=False),
    ]


def start_scene(url: str) -> Scene:
    """Return the scene of an empty platform."""
    return Scene("console-start", f"{url}/console", lambda page: page.text("#start-size"))


def scaling_scene(url: str) -> Scene:
    """Return the scene of an hour of autoscaling."""

    def act(page: Page) -> None:
        page.until(lambda: page.find("#scaling-range").is_displayed(), "the tab")
        page.find("#scaling-range option[value='3600']").click()

    return Scene("console-scaling", f"{url}/console#/chat/scaling", lambda page: page.all(".mark.out"), act)


def keys_scene(url: str, secret: str, limited: str) -> Scene:
    """Return the scene of access keys, and the dialog with the limits of one of them."""

    def act(page: Page) -> None:
        page.run("sessionStorage.clear()")
        page.run(f"location.hash = '#key={secret}'")
        page.until(lambda: page.find("#connection").text, "a page that is signed in")
        page.run("location.hash = '#keys'")
        page.until(lambda: page.all(f"[aria-label='Limits of {limited}']"), "the list")
        page.click(f"[aria-label='Limits of {limited}']")

    is_open = "#key-limit-dialog"
    return Scene(
        "console-keys", f"{url}/console", lambda page: page.find(is_open).is_displayed(), act, is_on_phone=False
    )


def deploy_scene_endpoints(platform: Running, folder: Path) -> None:
    """Deploy an endpoint that serves, one that fails, and one that takes minutes to load."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "inference.py").write_text(SLOW_CODE)
    containers: dict[str, dict[str, object]] = {
        "chat": {
            "Image": IMAGE,
            "Environment": {"HF_MODEL_ID": MODEL, "HF_TOKEN": "hf_any", "MAX_TOTAL_TOKENS": "2048"},
        },
        "draft": {"Image": IMAGE, "Environment": {"HF_MODEL_ID": "/models/does-not-exist"}},
        "summaries": {"Image": CODE_IMAGE, "ModelDataUrl": str(folder)},
    }
    client = platform.client("sagemaker")
    for name, container in containers.items():
        role = "arn:aws:iam::123456789012:role/docs"
        client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=role)
        variant = {"VariantName": "AllTraffic", "ModelName": name, "InstanceType": "ml.c6i.xlarge"}
        patience = {"ContainerStartupHealthCheckTimeoutInSeconds": 900}
        variants = [{**variant, **patience, "InitialInstanceCount": 1}]
        client.create_endpoint_config(EndpointConfigName=name, ProductionVariants=variants)
        client.create_endpoint(EndpointName=name, EndpointConfigName=name)
    platform.until_in_service("chat")


@contextmanager
def load(url: str, num_clients: int = 3) -> Iterator[None]:
    """Send an endpoint questions until the block ends."""
    is_over = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as session:
            turn = number
            while not is_over.wait(0.3 * number):
                messages = [{"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]}]
                body = {"model": "chat", "messages": messages, "max_tokens": 24 + 30 * (turn % 5)}
                session.post("/v1/chat/completions", json=body)
                turn += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


class Album:
    """The scenes that were asked for, and their pictures from a phone."""

    def __init__(self, camera: Camera, wanted: Sequence[str]) -> None:
        self._camera = camera
        self._wanted = wanted
        self._strips: dict[str, list[Image.Image]] = {"light": [], "dark": []}

    def take(self, *scenes: Scene) -> None:
        """Take the pictures of the scenes that were asked for."""
        for scene in scenes:
            if self.wants(scene.name):
                for theme, pictures in self._camera.take(scene).items():
                    self._strips[theme] += pictures

    def wants(self, *names: str) -> bool:
        """Return whether any of the names was asked for."""
        return not self._wanted or any(name.startswith(tuple(self._wanted)) for name in names)

    def wants_of(self, group: str) -> bool:
        """Return whether a scene of a group was asked for; their names begin with the group's."""
        return self.wants(group) or any(wanted.startswith(group) for wanted in self._wanted)

    def save_strips(self, name: str) -> None:
        """Save the pictures from a phone in rows, by theme, and forget them."""
        for theme, background in (("light", "#ffffff"), ("dark", "#000000")):
            pictures, self._strips[theme] = self._strips[theme], []
            suffix = "" if theme == "light" else "-dark"
            if pictures:
                save(in_rows(pictures, background), self._camera.folder / f"{name}{suffix}.png")


def photograph_chat(album: Album, folder: Path) -> None:
    """Serve the model, and take the pictures of the chat page."""
    if not album.wants_of("chat"):
        return
    server = serve(MODEL, folder)
    try:
        album.take(*chat_scenes(server.url))
        album.save_strips("chat-phone")
    finally:
        server.stop()


def photograph_console(album: Album, folder: Path) -> None:
    """Start a platform and take the pictures of its console: empty, then with endpoints and load."""
    if not album.wants_of("console"):
        return
    platform = up(folder / "platform", "--open")
    try:
        album.take(start_scene(platform.url))
        deploy_scene_endpoints(platform, folder / "summaries")
        album.take(creating_scene(platform.url))
        with load(platform.url):
            time.sleep(LOAD_S)  # the charts show this time
            album.take(*console_scenes(platform.url))
    finally:
        platform.stop()
    with played_world() as world, serving(FakePlatform()) as played:
        show(played, world)
        album.take(scaling_scene(played.url))
    album.save_strips("console-phone")


def photograph_keys(album: Album) -> None:
    """Take the picture of a platform's keys, which has no endpoints."""
    if not album.wants("console-keys"):
        return
    shop = KeyLimits(models=("chat-*", "embeddings"), requests_per_minute=600, tokens_per_minute=200_000)
    with closing(open_store("sqlite://")) as store:
        keys = AccessKeys(store)
        own = keys.create(note="this machine")
        made = keys.create(note="web shop", limits=shop)
        keys.create(note="dashboards", limits=KeyLimits(actions=("read",)))
        with serving(FakePlatform(keys=keys, key=own.secret)) as platform:
            album.take(keys_scene(platform.url, own.secret, made.key_id))


def main() -> None:
    """Take the screenshots that the command line asks for."""
    parser = argparse.ArgumentParser(description="Take the screenshots of the docs.")
    parser.add_argument("names", nargs="*", help="the beginnings of the names of scenes; none: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs/images", help="where the pictures go")
    options = parser.parse_args()
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        driver = stack.enter_context(chromium(temporary / "profile"))
        album = Album(Camera(driver, options.folder), options.names)
        photograph_chat(album, temporary)
        photograph_console(album, temporary)
        photograph_keys(album)


if __name__ == "__main__":
    main()
