"""The report in headless Chromium: what people see and press."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.studies.report.making import write_run

from fedflux.studies.report import write_report

pytestmark = pytest.mark.slow
EVIL = "<img src=x onerror=window.hurt=1></script><script>window.hurt=1</script>"
ALLOWED_BYTES = 15_000_000


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
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for seed in range(6):
        for algorithm, lift in (("flux", 0.5), ("fedavg", -4.0)):
            write_run(folder / f"{algorithm}-s{seed}", algorithm=algorithm, seed=seed, lift=lift + seed / 10)
    write_run(folder / "many", clients=400, clusters=12, group="400 clients")
    write_run(folder / "evil", dataset=EVIL, data_dir=EVIL, label=EVIL, command=EVIL, group=EVIL)
    write_run(folder / "unfinished", finished=False)
    return write_report([folder], None)


class Screen:
    """A page that remembers everything the browser complained about or asked the network for."""

    def __init__(self, browser: Any, report: Path, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(report.as_uri())

    def draw_all(self) -> None:
        """Scroll through the page until every chart is drawn."""
        for chart in self.page.locator(".chart").all():
            chart.scroll_into_view_if_needed()
            chart.locator(".main-svg").first.wait_for(timeout=20_000)

    def wait_for_run(self, name: str) -> None:
        """The browser tells the page of a new address in its own time; fails where the run does not come up at all."""
        self.page.wait_for_function(
            "name => document.querySelector('#run-title').innerText === name", arg=name, timeout=10_000
        )

    def runs(self) -> list[str]:
        names: list[str] = self.page.locator("table.runs tbody th").all_inner_texts()
        return names


@pytest.fixture
def screen(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Screen]:
    made = Screen(browser, report, **getattr(request, "param", {"viewport": {"width": 1280, "height": 900}}))
    yield made
    made.context.close()


def test_it_opens_without_complaint_and_asks_for_nothing(screen: Screen, report: Path) -> None:
    screen.draw_all()
    for run in ("many", "fedavg-s0", "evil"):
        screen.page.goto(f"{report.as_uri()}#run={run}")
        screen.wait_for_run(run)
        screen.draw_all()
    assert screen.complaints == []
    assert [url for url in screen.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert screen.page.evaluate("window.hurt") is None
    assert screen.page.locator("main img[src=x]").count() == 0
    assert EVIL in screen.page.locator("#run pre").inner_text()


def test_posteriors_and_held_out_clients_are_shown(browser: Any, tmp_path: Path) -> None:
    def placed(client: int, calibrated: bool) -> dict[str, Any]:
        told = {"novel": False, "novelty_score": 0.5, "calibrated": calibrated, "confidence": 0.75}
        return {"client": client, "cluster": 0, "posterior": [0.75, 0.25], **told}

    result = {
        "test_placements": [placed(k, k != 1) for k in range(4)],
        "unseen_placements": [placed(4, True), placed(5, False)],
        **{"unseen": 80.0, "unseen_per_client": [90.0, 70.0], "unseen_truth": [0, 9], "unseen_names": ["a", EVIL]},
    }
    screen = Screen(browser, write_report([write_run(tmp_path / "r", clients=4, result=result)], None))
    screen.draw_all()
    assert screen.complaints == []
    for name in ("Posterior of clients over clusters", "Posterior of clients over clusters, held out of training"):
        assert screen.page.get_by_role("img", name=name, exact=True).count() == 1
    screen.page.get_by_text("Client by client").click()
    verdicts = {
        "Clients": ["no", "not calibrated", "no", "no"],
        "Clients that were held out of training": ["no", "not calibrated"],
    }
    for label, words in verdicts.items():
        cells = screen.page.get_by_role("region", name=label, exact=True).locator("tbody td.nowrap")
        assert cells.all_inner_texts() == words
    held_out = screen.page.get_by_role("region", name="Clients that were held out of training").inner_text()
    assert "9 (new)" in held_out
    assert EVIL in held_out
    screen.context.close()


def test_tables_sort_by_mouse_and_keyboard(screen: Screen) -> None:
    head = screen.page.locator("table.runs th", has_text="Known, %")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    column = "table.runs tbody tr td:nth-child(7)"
    values = [float(text) for text in screen.page.locator(column).all_inner_texts()]
    assert values == sorted(values, reverse=True)
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in screen.page.locator(column).all_inner_texts()] == sorted(values)


def test_the_table_of_runs_can_be_filtered(screen: Screen) -> None:
    everything = screen.runs()
    assert len(everything) == 14
    screen.page.get_by_label("Filter").fill("s3")
    assert sorted(screen.runs()) == ["fedavg-s3", "flux-s3"]
    screen.page.locator("#runs").get_by_label("Algorithm").select_option("fedavg")
    assert screen.runs() == ["fedavg-s3"]
    screen.page.get_by_label("Filter").fill("")
    assert len(screen.runs()) == 6


def test_a_run_is_chosen_by_link_and_by_address(screen: Screen, report: Path) -> None:
    screen.wait_for_run(screen.runs()[0])
    screen.page.get_by_role("link", name="flux-s4").click()
    screen.wait_for_run("flux-s4")
    assert screen.page.url.endswith("#run=flux-s4")
    assert screen.page.locator("tr.chosen th").inner_text() == "flux-s4"
    screen.page.go_back()
    screen.wait_for_run(screen.runs()[0])
    screen.page.goto(f"{report.as_uri()}#run=fedavg-s2")
    screen.wait_for_run("fedavg-s2")
    screen.page.locator("#run").get_by_role("button", name="Next").click()
    screen.wait_for_run("fedavg-s3")


def test_charts_answer_to_hover_press_and_picked_clusters(screen: Screen, report: Path) -> None:
    screen.page.goto(f"{report.as_uri()}#run=flux-s1")
    screen.wait_for_run("flux-s1")
    screen.draw_all()
    chart = screen.page.get_by_role("img", name="Descriptor map")
    chart.scroll_into_view_if_needed()
    chart.locator(".point").first.hover(force=True)
    label = chart.locator(".hoverlayer .hovertext").first
    label.wait_for()
    assert "true cluster" in label.text_content()
    opacity = "document.querySelector('[aria-label=\"Descriptor map\"]').data[0].marker.opacity"
    before = screen.page.evaluate(opacity)
    screen.page.locator(".key").get_by_role("button", name="cluster 1").click()
    screen.page.wait_for_function(f"JSON.stringify({opacity}) !== '{json.dumps(before, separators=(',', ':'))}'")
    after = screen.page.evaluate(opacity)
    assert [after[k] < before[k] for k in range(4)] == [True, False, True, False]
    compared = screen.page.get_by_role("img", name="Comparison of algorithms")
    compared.scroll_into_view_if_needed()
    compared.locator(".point").first.click(force=True)
    screen.page.wait_for_function("location.hash !== '#run=flux-s1'")


def test_the_comparison_shows_the_score_that_is_chosen(screen: Screen) -> None:
    screen.draw_all()
    title = "document.querySelector('[aria-label=\"Comparison of algorithms\"]').layout.yaxis.title.text"
    assert screen.page.evaluate(title) == "known association, %"
    screen.page.get_by_label("Score").first.select_option("test_worst")
    screen.page.wait_for_function(f"{title} === 'test phase, worst client, %'")


@pytest.mark.parametrize(
    "screen",
    [{"viewport": {"width": 1280, "height": 900}, "color_scheme": scheme} for scheme in ("light", "dark")],
    indirect=True,
)
def test_dark_and_light_follow_the_system_and_the_button(screen: Screen) -> None:
    def paper() -> Any:
        return screen.page.evaluate("getComputedStyle(document.body).backgroundColor")

    def chart() -> Any:
        return screen.page.evaluate("document.querySelector('.chart[data-drawn]').layout.paper_bgcolor")

    screen.draw_all()
    first = paper()
    dark = screen.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert first == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    drawn = chart()
    screen.page.locator("#theme").click()
    assert paper() != first
    assert chart() != drawn
    chosen = paper()
    screen.page.reload()
    assert paper() == chosen
    assert screen.complaints == []


@pytest.mark.parametrize("screen", [{"viewport": {"width": 390, "height": 844}, "has_touch": True}], indirect=True)
def test_it_fits_a_phone(screen: Screen, report: Path) -> None:
    for run in ("flux-s0", "many", "evil"):
        screen.page.goto(f"{report.as_uri()}#run={run}")
        screen.wait_for_run(run)
        screen.draw_all()
        assert screen.page.evaluate("document.documentElement.scrollWidth") == 390
        sizes = (
            "[...document.querySelectorAll('p, td, th, figcaption')].map(n => parseFloat(getComputedStyle(n).fontSize))"
        )
        assert min(screen.page.evaluate(sizes)) >= 12
    assert screen.complaints == []


PEOPLE = [f"person {k:02d} of the trial at the northern site" for k in range(26)] + [EVIL]
NAMED = {
    **{"truth": None, "clusters_true": None, "ari": None, "nmi": None, "pairs_right": None, "holds_images": False},
    **{"client_names": PEOPLE, "class_names": ["sit", "walk", EVIL], "verdict": "25 clusters of 27 clients."},
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """27 people in 25 clusters, without truth."""
    folder = tmp_path_factory.mktemp("people") / "people"
    told: dict[str, Any] = {"shift": "none", "dataset": "npz", "data_dir": "/data/wrists.npz"}
    return write_report([write_run(folder, clients=27, clusters=25, samples=False, result=NAMED, **told)], None)


WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.mark.parametrize("viewport", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_27_people_in_25_clusters(browser: Any, people: Path, viewport: dict[str, int], scheme: str) -> None:
    screen = Screen(browser, people, viewport=viewport, color_scheme=scheme)
    for details in screen.page.locator("details").all():
        details.evaluate("node => { node.open = true; }")
    screen.draw_all()
    assert screen.page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    assert screen.complaints == []
    assert screen.page.evaluate("window.hurt") is None
    assert screen.page.locator(".verdict").all_inner_texts() == ["25 clusters of 27 clients."]
    text = screen.page.locator("main").inner_text()
    assert "wrists.npz, not shifted, seed 42" in text
    assert "level" not in screen.page.locator("#overview, #runs").all_inner_texts()[0].lower()
    dots = "[...document.querySelectorAll('.key .dot')].map(dot => getComputedStyle(dot).backgroundColor)"
    assert len(set(screen.page.evaluate(dots))) == 25
    drawn = "document.querySelector('[aria-label=\"Descriptor map\"]').data[0].marker.color"
    assert len(set(screen.page.evaluate(drawn))) == 25
    clients = screen.page.get_by_role("region", name="Clients", exact=True).locator("tbody th")
    assert clients.all_inner_texts() == PEOPLE
    ticks = screen.page.locator("[aria-label='Accuracy of every client'] .xtick text").all_text_contents()
    assert len(set(ticks)) == 27, "names that are cut are still told apart"
    screen.context.close()


def test_no_test_phase_says_why(browser: Any, tmp_path: Path) -> None:
    why = "features cannot show P(Y|X), in which clusters 0 and 1 differ: 2 of 4 clients have none"
    known = [90.0, 80.0, 70.0, 60.0]
    result = {
        **{"no_test_phase": why, "test": None, "test_worst": None, "test_quantile10": None, "test_placements": None},
        **{"known_per_client": known, "test_per_client": [None, None, 70.0, 60.0]},
    }
    screen = Screen(browser, write_report([write_run(tmp_path / "r", clients=4, result=result)], None))
    screen.draw_all()
    assert screen.page.locator("#overview .note").all_inner_texts() == [f"No test phase: {why}."]
    assert "none: features cannot show P(Y|X)" in screen.page.locator("#run .cards").inner_text()
    assert "Clients without an open dot have no test phase" in screen.page.locator("#run").inner_text()
    assert "Test, %" not in screen.page.locator("table.runs thead").inner_text()
    assert screen.complaints == []
    screen.context.close()


def test_a_comparison_says_first_what_it_came_to(screen: Screen, report: Path) -> None:
    words = screen.page.locator("#overview .verdict").first.inner_text()
    assert "flux has the highest known association" in words
    assert "Difference flux − fedavg: +4.5 points on average over 6 pairs of runs, better than fedavg (p = " in words


def test_another_score_is_called_by_its_name(browser: Any, tmp_path: Path) -> None:
    result = {"score": "macro ROC AUC"}
    screen = Screen(browser, write_report([write_run(tmp_path / "r", result=result)], None))
    screen.draw_all()
    assert screen.page.get_by_role("heading", name="Macro ROC AUC by round").count() == 1
    assert "macro ROC AUC; mean over clients" in screen.page.locator("#run .cards").inner_text()
    assert "accuracy" not in screen.page.locator("#run").inner_text().lower()
    screen.context.close()


def test_it_stays_small(report: Path) -> None:
    assert report.stat().st_size < ALLOWED_BYTES
