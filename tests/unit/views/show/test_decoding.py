from pathlib import Path

import pytest

from rollbook.components.policies.byte_tokenizer import encode_bytes, save_byte_tokenizer
from rollbook.core.errors import PolicyError
from rollbook.project.run.run import Run
from rollbook.views.show.decoding import UNFINISHED, TokenDecoder, decoder_for


@pytest.fixture
def decoder(tmp_path: Path) -> TokenDecoder:
    save_byte_tokenizer(tmp_path, 64)
    return TokenDecoder(tmp_path)


def test_pieces_make_up_the_text(decoder: TokenDecoder) -> None:
    text = "é🙂 a<|eos|>"
    ids = encode_bytes(decoder.folder, [text])[0]
    pieces = decoder.pieces(ids)
    assert [piece.id for piece in pieces] == ids
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in pieces if piece.special] == ["<|eos|>"]
    assert [piece.text for piece in pieces[:2]] == ["", "é"]  # two bytes of one character


def test_a_character_that_is_cut_off_is_said(decoder: TokenDecoder) -> None:
    ids = encode_bytes(decoder.folder, ["a🙂"])[0][:-1]
    assert [piece.text for piece in decoder.pieces(ids)][-1] == UNFINISHED
    assert decoder.pieces([]) == []


def test_a_damaged_tokenizer_is_an_error_with_its_place(decoder: TokenDecoder) -> None:
    (decoder.folder / "tokenizer.json").write_text("{")
    with pytest.raises(PolicyError, match=r"tokenizer\.json: not a valid tokenizer"):
        decoder.pieces([1])


def test_any_policy_on_disk_lends_its_tokenizer(looked_at: Path) -> None:
    own, said = decoder_for("i0000", Run())
    assert own is not None and own.folder.name == "i0000" and not said
    other, said = decoder_for("i0001", Run())
    assert other is not None and other.folder.name == "i0000"
    assert said == "decoded with the tokenizer of i0000"


def test_without_a_policy_it_says_how_to_get_one(project: Path) -> None:
    found, said = decoder_for("i0003", Run())
    assert found is None
    assert "that of i0003: not on disk; `dvc repro` makes it" in said
