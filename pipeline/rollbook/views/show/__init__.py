"""What `rollbook show` knows of a rollout, a group, a prompt or a policy: asked of the run, without torch.

finding.py, shown.py     an id, or the beginning of one, to what it names, and to all that is stored about it
facts.py       what is shown, as plain values; the JSON of the command is these
rollouts.py, groups.py, prompts.py, policies.py     from tables to facts, with answers.py and provenance.py
arithmetic.py, clipping.py                     an advantage and the clipped tokens, computed again from what is stored
layout.py      from facts to sections.py, what a page is made of
page.py        a page as HTML; on a terminal it is drawn by `rollbook.cli.showing`
"""
