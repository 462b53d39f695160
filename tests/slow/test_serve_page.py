"""The service's page in headless Chromium: it places and predicts as the run does, and sends nothing of the data."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.library.test_several_labels import clinic
from tests.serve.conftest import SMALL, clinics, images
from tests.serve.serving import Service, serving

import fedflux
from fedflux.serve.container import write_files
from fedflux.serve.making import bundle_contents

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium on the path")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedflux.TrainedRun:
    folder = tmp_path_factory.mktemp("trained") / "digits"
    fedflux.run(**{**SMALL, "clients": 9, "rounds": 6, "cluster_round": 3}, out=folder, progress=False)
    return fedflux.load(folder)


@pytest.fixture(scope="module")
def service(run: fedflux.TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("page")
    write_files(folder / "bundle", bundle_contents(run))
    with serving(folder / "bundle", folder / "state") as running:
        yield running


class Screen:
    """A page that remembers what the browser complained about and what it sent."""

    def __init__(self, browser: Any, service: Service, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[Any] = []
        self.page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.goto(service.url)
        self.page.locator("#key").wait_for(timeout=30_000)
        self.complaints.clear()  # that the first answer was 401
        self.page.fill("#secret", service.key)
        self.page.click("#key button")
        self.page.locator("body[data-ready]").wait_for(timeout=60_000)

    def give(self, files: list[Path]) -> Any:
        """What the page says of files."""
        self.page.set_input_files("#files", [str(file) for file in files])
        self.page.locator("#answer:not([hidden])").wait_for(timeout=30_000)
        return json.loads(self.page.evaluate("document.body.dataset.answer"))


def pictures(x: np.ndarray[Any, Any], folder: Path) -> list[Path]:
    found = []
    for number, one in enumerate(x):
        found.append(folder / f"{number}.png")
        Image.fromarray(one[0]).save(found[-1])
    return found


@pytest.mark.parametrize("turned", range(4))
def test_five_images_are_placed_and_answered_as_by_the_run(
    browser: Any, service: Service, run: fedflux.TrainedRun, turned: int, tmp_path: Path
) -> None:
    x = images(5, seed=10 + turned, turned=turned)
    screen = Screen(browser, service)
    screen.requests.clear()
    screen.context.set_offline(True)  # once loaded, it needs nobody
    told = screen.give(pictures(x, tmp_path))
    placement = run.assign(x)
    assert told["cluster"] == placement.cluster[0]
    assert told["belongs"] == pytest.approx(placement.posterior[0].tolist(), abs=1e-5)
    assert told["novel"] == placement.novel[0]
    assert told["score"] == pytest.approx(placement.score[0], abs=1.1e-3)
    assert np.array(told["probabilities"]) == pytest.approx(run.predict(x), abs=1e-5)
    assert [request.url for request in screen.requests if not request.url.startswith("blob:")] == []
    assert screen.complaints == []
    screen.context.close()


def test_everything_comes_from_the_service_and_nothing_is_sent(browser: Any, service: Service) -> None:
    screen = Screen(browser, service)
    assert {request.url.split("/")[2] for request in screen.requests} == {service.url.split("/")[2]}
    assert {request.method for request in screen.requests} == {"GET"}
    assert [request.post_data for request in screen.requests if request.post_data] == []
    screen.page.evaluate("fetch('https://elsewhere.example/').catch(() => 0)")
    screen.page.wait_for_timeout(300)
    assert any("Content Security Policy" in words for words in screen.complaints)
    screen.context.close()


@pytest.mark.parametrize("scale", [1, 255])
def test_tables_are_read_too(
    browser: Any, service: Service, run: fedflux.TrainedRun, scale: int, tmp_path: Path
) -> None:
    x = images(12, seed=3)
    values = x.reshape(12, -1) / (255 / scale)
    lines = [
        ",".join([*(f"p{k}" for k in range(64)), "label"]),
        *(",".join([*map(repr, row.tolist()), "7"]) for row in values),
    ]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    screen = Screen(browser, service)
    told = screen.give([tmp_path / "table.csv"])
    assert np.array(told["probabilities"]) == pytest.approx(run.predict(x), abs=1e-5)
    screen.context.close()


def test_several_labels_are_answered_by_sigmoids(browser: Any, tmp_path: Path) -> None:
    several, (x, _) = clinics(tmp_path), clinic(np.random.default_rng(5), 1, 20)
    (tmp_path / "table.csv").write_text("\n".join(",".join(map(repr, row.tolist())) for row in x))
    write_files(tmp_path / "bundle", bundle_contents(several))
    with serving(tmp_path / "bundle", tmp_path / "state") as service:
        screen = Screen(browser, service)
        told = screen.give([tmp_path / "table.csv"])
        placement, expected = several.assign(x), several.predict(x)
        assert told["cluster"] == placement.cluster[0]
        assert np.array(told["probabilities"]) == pytest.approx(expected, abs=1e-5)
        cards = screen.page.locator("#records .answer").all_text_contents()
        names = np.array(several.class_names)
        for words, row in zip(cards, np.asarray(expected), strict=True):
            found = {one.split(" · ")[0] for one in words.split(", ")} if words != "none" else set()
            assert found == set(names[row >= 0.5].tolist())
        screen.context.close()


def test_files_that_are_no_records_are_told_in_one_line(browser: Any, service: Service, tmp_path: Path) -> None:
    screen = Screen(browser, service)
    (tmp_path / "a.png").write_bytes(b"no image")
    (tmp_path / "b.csv").write_text("1,2,3\n")
    (tmp_path / "c.csv").write_text(",".join(["x"] * 64) + "\n" + ",".join(["<b>"] * 64) + "\n")
    for name, words in (("a.png", "is no image"), ("b.csv", "a record has 64"), ("c.csv", "is missing or no number")):
        screen.page.set_input_files("#files", str(tmp_path / name))
        screen.page.locator("#error:not([hidden])").wait_for(timeout=10_000)
        screen.page.wait_for_function(
            "words => document.getElementById('error').textContent.includes(words)", arg=words
        )
    assert screen.complaints == []
    screen.context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_phones_and_the_night(
    browser: Any, service: Service, width: int, scheme: str, tmp_path: Path
) -> None:
    screen = Screen(browser, service, viewport={"width": width, "height": 844}, color_scheme=scheme)
    screen.give(pictures(images(5), tmp_path))
    assert screen.page.evaluate("document.documentElement.scrollWidth") <= width
    ground = screen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 3 * 128) == (scheme == "dark")
    screen.page.screenshot(path=tmp_path / "page.png", full_page=True)
    screen.page.goto(service.url + "/docs")
    screen.page.locator(".card").first.wait_for(timeout=10_000)
    assert screen.page.evaluate("document.documentElement.scrollWidth") <= width
    screen.context.close()
