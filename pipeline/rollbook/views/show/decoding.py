"""Tokens as text, from the tokenizer.json of a stored policy: each token with exactly what it adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.core.errors import PolicyError
from rollbook.core.ids import BASE_KEY
from rollbook.project.run.store import Store
from rollbook.tables.artifacts import RESTORE
from rollbook.views.show.facts import Piece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
UNFINISHED = "�"
"""Stands for the bytes of a character that the last token leaves unfinished."""


@dataclass(frozen=True)
class TokenDecoder:
    """A policy's tokenizer.

    Attributes:
        folder: of the policy it was taken from.
    """

    folder: Path

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        file = self.folder / TOKENIZER_FILE
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises Exception itself
            raise PolicyError(
                f"{file}: not a valid tokenizer: {error}",
                RESTORE,
            ) from None

    @cached_property
    def _special(self) -> frozenset[int]:
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def pieces(self, token_ids: Sequence[int]) -> list[Piece]:
        """Tokens whose texts, one behind the other, are the text of all of them.

        A token that ends inside a character adds nothing; the one that completes the character adds all of it.
        """
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        pieces = [
            Piece(each, stream.step(self._tokenizer, each) or "", each in self._special)
            for each in token_ids
        ]
        whole = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        told = "".join(piece.text for piece in pieces)
        if pieces and not pieces[-1].text and told != whole:
            pieces[-1] = Piece(pieces[-1].id, UNFINISHED, pieces[-1].special)
        return pieces


def decoder_for(key: str, run: Store) -> tuple[TokenDecoder | None, str]:
    """The tokenizer of a policy, and what is to be said about it.

    All policies of a chain share one tokenizer: an update copies it. So where the policy itself is not on disk, one
    that is does as well; the caller compares what it decodes with the stored text.

    Args:
        key: of the iteration whose policy generated; empty where it is not known.
        run: that it is part of.
    """
    here = run.keys_with("policies")
    for each in [key, *(other for other in here if other != key)] if key else here:
        folder = run.place("policies", each)
        if (folder / TOKENIZER_FILE).is_file():
            return TokenDecoder(
                folder
            ), "" if each == key else f"decoded with the tokenizer of {each}"
    if here:
        return None, f"no policy on disk has a {TOKENIZER_FILE}: tokens are shown by their ids"
    brings = run.policy_place(key or BASE_KEY)
    return None, (
        f"no policy is on disk, so there is no tokenizer and tokens are shown by their ids; that of {key or BASE_KEY}: "
        f"{brings}"
    )
