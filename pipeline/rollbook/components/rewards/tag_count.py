"""tag_count: the share of tags that occur exactly once. Partial credit on the way to `format`.

    (number of tags that occur exactly once) / (number of tags)

The tag count that is used with TRL (open-r1's `tag_count_reward`: four tags, 0.25 each, which wants line ends around
them: `newlines: true`). Order does not count, and repeating a tag loses its part. A prompt that ends with the first tag
has opened it already (see `format`). Where the tags are special tokens of the tokenizer, set `raw: true`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rollbook.components.rewards.base import Reward, RewardInput
from rollbook.components.rewards.format import TAGS


class TagCount(Reward):
    """Counts tags.

    Attributes:
        tags: in the order in which they should occur.
        newlines: a tag counts only with a line end on either side, but for the start and the end of the text.
        raw: look at the raw completion, special tokens kept, instead of the clean text.
    """

    tags: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] = TAGS
    newlines: bool = False
    raw: bool = False

    def __call__(self, row: RewardInput) -> float:
        text = row.completion if self.raw else row.text
        if row.prompt.rstrip().endswith(self.tags[0]):
            # What a template writes behind the tag belongs to the prompt.
            text = self.tags[0] + row.prompt.rpartition(self.tags[0])[2] + text
        return sum(text.count(tag) == 1 for tag in self._wanted()) / len(self.tags)

    def _wanted(self) -> list[str]:
        """The tags, with their line ends if these count."""
        if not self.newlines:
            return list(self.tags)
        last = len(self.tags) - 1
        return [
            f"{chr(10) if place else ''}{tag}{chr(10) if place < last else ''}"
            for place, tag in enumerate(self.tags)
        ]
