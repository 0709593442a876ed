"""From prompts to a new policy, over tables in memory."""
