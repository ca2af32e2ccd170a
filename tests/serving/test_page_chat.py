"""The page talks with a run: it shows the run's answers and their numbers, and every turn can be changed."""

import json
import re

import numpy as np
import pytest
import torch

from pipelines.chat.messages import Message, fitting
from tests.serving.pages import TOUCH, WIDE, bars_of, check_looks, facts_of, serving, tokens_of

URL = "**/v1/chat/completions"
HOSTILE = "<img src=x onerror=alert(1)>"
TOKENS = 4


@pytest.fixture(scope="module")
def address(chatting, gpt):
    with serving({"chat": chatting, "gpt": gpt}) as (address, _):
        yield address


@pytest.fixture
def visit(open_page, address):
    """Return visit(**options), which opens the page with greedy answers of TOKENS tokens."""

    def visit(**options):
        page = open_page(address, **options)
        page.locator("#chat summary").click()
        option(page, "temperature", 0)
        option(page, "max_tokens", TOKENS)
        return page

    return visit


@pytest.fixture
def page(visit):
    return visit()


def option(page, name, value):
    page.fill(f"#chat [name={name}]", str(value))


def finished(page):
    page.wait_for_function("() => document.querySelector('#send').textContent === 'Send'")


def say(page, text):
    page.fill("#message", text)
    page.click("#send")
    finished(page)


def turns(page):
    """Return [role, text] of the turns that are shown."""
    script = """turns => turns.map(turn => [
        turn.classList[1], [...turn.querySelectorAll('.strip:not([hidden]), .said:not([hidden])')]
            .map(each => each.textContent).join('')])"""
    return [Message(*turn) for turn in page.locator(".turn").evaluate_all(script)]


def expected(run, messages, tokens=TOKENS):
    """Return the greedy answer of a run to (role, text) pairs."""
    return run.chat([{"role": role, "content": text} for role, text in messages], greedy=True, tokens=tokens)


def sent_by(page):
    """Return a list that gets the body of each request for an answer."""
    bodies = []
    page.on("request", lambda request: "/chat/" in request.url and bodies.append(json.loads(request.post_data)))
    return bodies


def act(page, turn, name):
    page.locator(".turn").nth(turn).get_by_text(name, exact=True).click()


def test_the_page_opens_with_the_chat_of_a_run_that_has_one(page):
    assert page.locator("#chat").is_visible()
    page.select_option("#run", "gpt")
    page.wait_for_selector("#strips .token")
    assert page.locator("#read").is_visible() and page.locator("input[value=chat] + span").is_hidden()


def test_answers_of_a_conversation_are_those_of_the_run(page, chatting):
    said = []
    for text in ("1?", "2?"):
        say(page, text)
        said.append(("user", text))
        said.append(("assistant", expected(chatting, said)))
        assert turns(page) == said


@torch.no_grad()
def test_each_token_has_the_surprisal_and_the_candidates_of_the_model(page, chatting):
    say(page, "1?")
    shown = tokens_of(page, ".turn.assistant")
    prompt = chatting.template.prompt((Message("user", "1?"),))
    ids, rows = [*prompt], []
    for _ in shown:
        logits = chatting.model.logits(chatting.model(torch.tensor([ids])))[0, -1]
        logits[chatting.tokenizer.vocab_size :] = -torch.inf
        rows.append(logits.double().log_softmax(dim=-1))
        ids.append(int(rows[-1].argmax()))
    assert [text for text, *_ in shown] == [chatting.tokenizer.decode([i]) for i in ids[len(prompt) :]]
    for place, (row, (_, _, label)) in enumerate(zip(rows, shown, strict=True)):
        page.locator(".turn.assistant .token").nth(place).hover()
        facts = facts_of(page, "#chat-detail")
        assert float(facts["surprisal"].removesuffix(" bits")) == pytest.approx(
            -float(row.max()) / np.log(2), abs=0.006
        )
        assert facts["surprisal"] in label and facts["rank"] == "1"
        shares = [float(share.removesuffix(" %").removeprefix("<")) for _, share in bars_of(page, "#chat-detail")]
        np.testing.assert_allclose(shares, 100 * row.topk(10).values.exp(), atol=0.06)


def test_an_edited_message_drops_the_later_turns_and_is_answered_again(page, chatting):
    for text in ("1?", "2?"):
        say(page, text)
    act(page, 0, "Edit")
    page.locator(".turn textarea").fill("3?")
    page.keyboard.press("Enter")
    finished(page)
    assert turns(page) == [("user", "3?"), ("assistant", expected(chatting, [("user", "3?")]))]


def test_an_edited_answer_is_what_the_model_reads_and_has_no_scores(page):
    say(page, "1?")
    act(page, 1, "Edit")
    page.locator(".turn textarea").fill("no")
    act(page, 1, "Cancel")
    assert page.locator(".turn .token").count() > 0
    act(page, 1, "Edit")
    page.locator(".turn textarea").fill("no")
    act(page, 1, "Save")
    assert page.locator(".turn .token").count() == 0 and turns(page)[1] == ("assistant", "no")
    bodies = sent_by(page)
    say(page, "2?")
    assert [one["content"] for one in bodies[0]["messages"]] == ["1?", "no", "2?"]


def test_an_answer_can_be_regenerated_with_another_seed(page):
    say(page, "1?")
    say(page, "2?")
    option(page, "temperature", 3)
    bodies = sent_by(page)
    found = set()
    for _ in range(6):
        act(page, 1, "Regenerate")
        finished(page)
        assert [role for role, _ in turns(page)] == ["user", "assistant"]
        assert page.evaluate("document.activeElement.id") == "send"  # the answer's own button is gone
        found.add(turns(page)[1].content)
    assert len(found) > 1
    assert all([one["content"] for one in body["messages"]] == ["1?"] for body in bodies)


def test_stop_ends_an_answer_and_its_message_can_be_answered_again(page, chatting):
    held = []
    page.route(URL, lambda route: held.append(route))
    page.fill("#message", "1?")
    page.click("#send")
    page.wait_for_function("() => document.querySelector('#send').textContent === 'Stop'")
    page.click("#send")
    finished(page)
    assert page.locator("#chat-status").text_content() == "Stopped." and turns(page) == [("user", "1?")]
    page.unroute(URL)
    page.click("#send")
    page.wait_for_selector(".turn.assistant .token")
    finished(page)
    assert turns(page)[1].content == expected(chatting, [("user", "1?")])


def test_an_answer_can_be_edited_only_after_its_end(page):
    held = []
    page.route(URL, lambda route: held.append(route))
    page.fill("#message", "1?")
    page.click("#send")
    edit = page.locator(".turn.assistant").get_by_text("Edit", exact=True)
    while not held:
        page.wait_for_timeout(20)
    assert edit.is_hidden()
    held[0].continue_()
    finished(page)
    assert edit.is_visible()


def test_the_status_says_whether_the_stop_text_ended_an_answer(page, chatting):
    answer = expected(chatting, [("user", "1?")])
    option(page, "stop", answer[1])
    say(page, "1?")
    assert page.locator("#chat-status").text_content() == "Stopped at the stop text."
    assert answer.startswith(turns(page)[1].content)


def test_a_conversation_that_outgrows_the_context_keeps_its_system_message_and_its_last_turns(page, chatting):
    page.fill("#system", "s")
    bodies = sent_by(page)
    for number in range(3):
        say(page, f"{number}?")
    assert page.locator("#chat-status").text_content().endswith("no longer sees the oldest messages.")
    messages = (Message("system", "s"), *turns(page)[:-1])
    room = chatting.config.model.context_length - TOKENS
    kept = fitting(messages, lambda some: len(chatting.template.prompt(some)) <= room)
    assert len(kept) < len(messages)
    assert [Message(**one) for one in bodies[-1]["messages"]] == list(kept)


def test_a_long_message_is_answered_in_the_rest_of_the_context(page):
    option(page, "max_tokens", "")
    say(page, "a b c d e f g?")
    assert [role for role, _ in turns(page)] == ["user", "assistant"]
    say(page, "a b c " * 40)
    assert "shorten the conversation" in page.locator("#problem").text_content()
    assert [role for role, _ in turns(page)] == ["user", "assistant", "user"]


def test_a_wrong_option_is_named_and_a_new_conversation_begins_without_it(page):
    option(page, "top_p", 2)
    say(page, "1?")
    assert page.locator("#problem").text_content().startswith("“Top-p” is 2, but must be a number from 0 to 1")
    page.click("#new-chat")
    assert turns(page) == [] and page.locator("#problem").is_hidden()
    option(page, "top_p", "")
    say(page, "1?")
    assert len(turns(page)) == 2


def test_the_keyboard_alone_holds_a_conversation(page):
    page.locator("#message").focus()
    page.keyboard.type("1?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("2?")
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn.assistant .token")
    finished(page)
    assert turns(page)[0] == ("user", "1?\n2?") and page.input_value("#message") == ""
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "option"
    page.keyboard.press("ArrowRight")
    assert page.locator("#chat-detail .facts").count() == 1
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "Edit"


def test_messages_are_text_in_their_own_direction(page):
    page.fill("#message", HOSTILE)
    page.click("#send")
    finished(page)
    page.fill("#message", "שלום עולם")
    page.click("#send")
    finished(page)
    said = [content for role, content in turns(page) if role == "user"]
    assert said == [HOSTILE, "שלום עולם"] and page.locator("img").count() == 0
    assert page.locator(".turn.user .said").last.evaluate("each => getComputedStyle(each).direction") == "rtl"


def test_on_a_touch_screen_enter_begins_a_line_and_a_tap_shows_a_token(visit):
    page = visit(**TOUCH)
    page.fill("#message", "1?")
    page.locator("#message").press("Enter")
    assert page.input_value("#message") == "1?\n" and turns(page) == []
    page.locator("#send").tap()
    finished(page)
    assert page.locator("#chat-detail.empty").count() == 1
    page.locator(".turn.assistant .token").first.tap()
    assert page.locator("#chat-detail:not(.empty) .bars li").count() == 10
    words = page.locator("main").inner_text().lower()
    assert not re.search(r"\b(click|point at|press|hover)\b", words)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, TOUCH["viewport"]], ids=["wide", "phone"])
def test_axe_finds_nothing_in_a_conversation(size, scheme, visit):
    page = visit(viewport=size, color_scheme=scheme)
    check_looks(page, "an empty conversation")
    say(page, "1?")
    page.locator(".turn.assistant .token").first.click()
    check_looks(page, "an answer")
    act(page, 0, "Edit")
    check_looks(page, "an edited message")


def test_another_run_can_go_on_with_the_conversation(page):
    say(page, "1?")
    page.select_option("#run", "gpt")
    page.select_option("#run", "chat")
    page.locator("input[value=chat]").focus()
    page.keyboard.press("Space")
    assert len(turns(page)) == 2 and page.locator("#chat").is_visible()
    assert page.evaluate("document.activeElement.value") == "chat"  # the keyboard stays where it is
