"""The page of a history in a real Chromium: every plot is drawn, nothing is cut off, nothing is fetched."""

import pytest
import torch

import metastable as ms
from tests.encoder.history.test_history import merge, spread
from tests.encoder.models import tiny
from tests.labels import overlapping

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_of(texts, tokenizer, tmp_path_factory):
    model = spread(tiny("bert"))
    history = ms.History(model, texts[:12], tokenizer=tokenizer, out=tmp_path_factory.mktemp("history"), every=1)
    merge(model)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.dense.weight.mul_(1.1)
    history.step()
    assert history.warnings
    return history.report()


@pytest.mark.parametrize("width", [390, 1366])
def test_the_page_fits_and_draws(browser, page_of, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith("http") and wrong.append(request.url))
    page.goto(page_of.as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 7")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Each plot is as wide as its place.
    gaps = "[...document.querySelectorAll('.js-plotly-plot')].map(p => p.parentElement.offsetWidth - "
    gaps += "p.querySelector('.main-svg').getBoundingClientRect().width)"
    assert max(map(abs, page.evaluate(gaps))) < 2
    assert page.locator("#warnings li").count() == 1
    assert overlapping(page) == []
    assert not wrong
    context.close()
