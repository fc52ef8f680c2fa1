"""Faults that are planted under producers, each with a seed whose world finds it."""

from __future__ import annotations

from tests.simulation.planting import Mutation, fault

TABLE = "fastbk.producers.table:OwnerTable"
SERVICE = "tests.simulation.streams.producers:Service"
PRODUCER = "tests.simulation.streams.producers:Producer"

MUTATIONS: tuple[Mutation, ...] = (
    fault(
        "segment-without-a-table",
        "the first entry of a segment has the changed rows alone",
        (f"{TABLE}.begin_segment", "self._wants_whole = True", "pass"),
        seed=2,
    ),
    fault(
        "row-left-out",
        "an entry with records of several names has the row of one",
        (f"{TABLE}.entry", "for name in self._changed)", "for name in list(self._changed)[:1])"),
        seed=1,
    ),
    fault(
        "table-kept-after-a-failure",
        "an owner that was fenced opens the writer again, and goes on with the table that it had",
        (
            f"{SERVICE}.hear",
            "self.give_up()",
            "self.table.epoch = self.world.log.open(self.world.rng)",
        ),
        seed=2,
    ),
    fault(
        "fenced-append-is-durable",
        "an owner takes an entry that was fenced for stored",
        (f"{SERVICE}.hear", "self.give_up()", "self.table.durable(); self.answer(self.table)"),
        seed=1,
    ),
    fault(
        "repeat-overtakes-its-original",
        "what was sent and is not durable yet is acknowledged",
        (f"{TABLE}.answers_after", "self.entries_sent", "self.entries_durable"),
        seed=1,
    ),
    fault(
        "repeats-are-taken",
        "a number that was sent before is appended again",
        (f"{TABLE}.take", "frame.numbers[first] <= row.last_number", "False"),
        seed=1,
    ),
    fault(
        "overtaking",
        "a frame is taken whose predecessor was refused, or lost",
        (f"{TABLE}.take", "if frame.follows > row.last_number:", "if False:"),
        seed=1,
    ),
    fault(
        "opened-too-early",
        "an opening is answered before its row is durable",
        (
            f"{SERVICE}.receive",
            "self.waiting.append((table.answers_after(), wire, answer))",
            "self.waiting.appendleft((0 if request is None else table.answers_after(), wire, answer))",
        ),
        seed=1,
    ),
    fault(
        "fenced-and-still-written",
        "a name that was opened again is taken from its former holder, too",
        (f"{TABLE}.take", "if frame.incarnation < row.incarnation:", "if False:"),
        seed=1,
    ),
    fault(
        "expired-is-new",
        "a name that was forgotten is taken for a new one",
        (
            f"{TABLE}.take",
            "if row is None or",
            "row = row or Row(frame.name, frame.incarnation, frame.follows, now_us)\n    if",
        ),
        seed=20,
    ),
    fault(
        "age-of-the-opening",
        "a name is forgotten by the time of its opening, and not of its last append",
        (f"{TABLE}.take", "time_us=max(now_us, row.time_us)", "time_us=row.time_us"),
        seed=1,
    ),
    fault(
        "refused-by-who-was-owner",
        "a refusal that ends a producer is answered at once, by an owner that may be none any more",
        (
            f"{SERVICE}.receive",
            "self.waiting.append((table.answers_after(), wire, answer))",
            "if answer[0].startswith('Producer'): wire.answers.append(answer)\n"
            "    else: self.waiting.append((table.answers_after(), wire, answer))",
        ),
        seed=2,
    ),
    fault(
        "incarnations-begin-again",
        "a name that was forgotten counts its openings from one again",
        (f"{TABLE}.open", "self.epoch << 32 | self._openings", "row.incarnation + 1"),
        seed=3,
    ),
    fault(
        "handover-answers-all",
        "a planned stop answers what is still on its way",
        (
            f"{SERVICE}.hand_over",
            "if table is not None and table.entries_durable == table.answers_after():",
            "if table is not None:\n        for _, wire, answer in self.waiting: wire.answers.append(answer)",
        ),
        seed=3,
    ),
    fault(
        "goes-on-where-it-was",
        "a producer that finds another owner sends on, and not again what is not acknowledged",
        (f"{PRODUCER}.connect", "self.unsent = deque(self.unacknowledged)", "pass"),
        seed=1,
    ),
)
