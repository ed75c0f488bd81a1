"""The values: session keys lead back to what they name, and nothing can be changed in place."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teaagentd.types import DEFAULT_CHANNEL, Address, InboundMessage, SessionKey

# HKUDS/nanobot#4057, NousResearch/hermes-agent#84686, sipeed/picoclaw#1330

_parts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6) | st.text(
    alphabet=":%/_\\ aA.é\0", max_size=6
)
_keys = st.builds(SessionKey, channel=_parts, chat_id=_parts)


@given(first=_keys, second=_keys)
def test_different_keys_have_different_names_that_lead_back(
    first: SessionKey, second: SessionKey
) -> None:
    assert SessionKey.parse(str(first)) == first
    assert (str(first) == str(second)) == (first == second)


@given(text=st.text(alphabet=":%/_ aA.é", max_size=8), colon=st.booleans())
def test_a_name_leads_to_the_same_key_however_often(text: str, colon: bool) -> None:
    key = SessionKey.parse(f"x:{text}" if colon else text)
    assert SessionKey.parse(str(key)) == key


def test_the_split_between_channel_and_chat_is_never_in_doubt() -> None:
    names = {
        str(SessionKey(channel="a:b", chat_id="c")),
        str(SessionKey(channel="a", chat_id="b:c")),
        str(SessionKey(channel="a%3Ab", chat_id="c")),
        str(SessionKey(channel="", chat_id="a:b:c")),
    }
    assert len(names) == 4


def test_a_name_without_a_channel_is_a_chat_of_the_default_one() -> None:
    assert SessionKey.parse("main") == SessionKey(channel=DEFAULT_CHANNEL, chat_id="main")
    assert SessionKey.parse("") == SessionKey(channel=DEFAULT_CHANNEL, chat_id="")
    assert str(SessionKey.parse("telegram:7")) == "telegram:7"


def test_a_message_belongs_to_its_chat_unless_it_says_otherwise() -> None:
    message = InboundMessage(channel="mail", chat_id="ann", content="hi")
    assert message.key == SessionKey(channel="mail", chat_id="ann")
    assert message.address == Address(channel="mail", chat_id="ann")
    shared = SessionKey(channel="shared", chat_id="desk")
    moved = InboundMessage(channel="mail", chat_id="ann", content="hi", session_key=shared)
    assert (moved.key, moved.address) == (shared, message.address)


def test_values_cannot_be_changed_in_place() -> None:
    key = SessionKey(channel="a", chat_id="b")
    with pytest.raises(FrozenInstanceError):
        key.channel = "c"  # type: ignore[misc]
