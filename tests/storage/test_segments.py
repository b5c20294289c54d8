"""Which segments are compacted: no more bytes are copied than are reclaimed, and the files stay few."""

from __future__ import annotations

from warrenmq.storage.segments import SEGMENT_SPAN, Segment, Segments

SIZE = 1000  # of a full segment
ALLOWANCE = 750


def segments_of(*described: tuple[int, int], span: int = 10) -> Segments:
    """Segments of these sizes and living bytes, each of which spans N positions."""
    segments = Segments()
    for number, (size, live) in enumerate(described):
        segment = Segment(number * span)
        segment.last = number * span + span - 1
        segment.size, segment.count = size, span
        segment.alive, segment.alive_bytes = 1, live
        segments.all.append(segment)
        segments.note(segment)
    return segments


def chosen(segments: Segments, written: int | None = None) -> list[int]:
    """The indexes of those to compact."""
    run = segments.choose_run(None if written is None else segments.all[written], SIZE, ALLOWANCE)
    return [segments.all.index(segment) for segment in run]


def test_sums_follow_writes_deletions_and_removals() -> None:
    segments = segments_of((1000, 900), (1000, 200))
    assert (segments.size, segments.live) == (2000, 1100)
    first, second = segments.all
    first.alive_bytes, first.marks_size = 100, 50
    segments.note(first)
    assert (segments.size, segments.live, segments.excess()) == (2050, 300, 1450)
    segments.remove(second)
    assert (segments.size, segments.live) == (1050, 100)


def test_the_overhead_of_records_is_their_average() -> None:
    segment = Segment(0)
    segment.note_page(10, 500)
    segment.note_page(30, 700)
    segment.alive, segment.alive_bytes = 4, 1000
    assert (segment.count, segment.overhead, segment.live_bytes()) == (40, 30, 1120)


def test_few_deletions_cause_no_compaction() -> None:
    assert chosen(segments_of((1000, 600), (1000, 600))) == []
    assert chosen(segments_of((1000, 200))) == []


def test_the_segment_with_the_greatest_dead_share_comes_first() -> None:
    assert chosen(segments_of((1000, 400), (1000, 600), (1000, 10), (1000, 600), (1000, 100))) == [2]


def test_neighbours_that_are_mostly_dead_go_with_it() -> None:
    assert chosen(segments_of((1000, 600), (1000, 300), (1000, 10), (1000, 300), (1000, 600))) == [1, 2, 3]


def test_small_neighbours_join_a_run() -> None:
    assert chosen(segments_of((1000, 1000), (100, 100), (50, 50), (1000, 10), (1000, 10))) == [1, 2, 3, 4]


def test_a_compaction_copies_no_more_than_it_reclaims() -> None:
    segments = segments_of((490, 490), (490, 490), (1000, 10), (1000, 10))
    run = [segments.all[at] for at in chosen(segments)]
    assert 2 * sum(segment.alive_bytes for segment in run) <= sum(segment.size for segment in run)


def test_a_run_fills_one_segment_at_most() -> None:
    run = chosen(segments_of(*[(1000, 300)] * 10))
    assert len(run) == 3


def test_a_run_spans_no_more_positions_than_a_segment_may() -> None:
    assert len(chosen(segments_of(*[(1000, 1)] * 5, span=SEGMENT_SPAN // 2))) == 2


def test_the_work_of_one_run_is_bounded() -> None:
    assert len(chosen(segments_of(*[(1000, 1)] * 50))) == 8


def test_segments_being_written_read_or_unreadable_are_left_out() -> None:
    segments = segments_of(*[(1000, 10)] * 6)
    segments.reading = segments.all[3]
    segments.all[0].is_unreadable = True
    assert chosen(segments, written=5) == [1, 2]


def test_the_segment_being_read_is_compacted_if_most_of_it_is_dead() -> None:
    segments = segments_of((1000, 600), (1000, 600), (1000, 0), (1000, 0))
    segments.reading = segments.all[2]
    segments.all[3].is_unreadable = True
    assert chosen(segments) == [2]


def test_many_small_files_are_merged_although_nothing_is_dead() -> None:
    assert chosen(segments_of(*[(1000, 1000)] * 3, *[(90, 90)] * 40)) == list(range(3, 14))
    assert chosen(segments_of(*[(90, 90)] * 30)) == []


def test_small_files_that_lie_far_apart_are_left_alone() -> None:
    assert chosen(segments_of(*[(90, 90)] * 40, span=SEGMENT_SPAN // 2)) == []


def test_one_takes_the_place_of_several() -> None:
    segments = segments_of((1000, 10), (1000, 10), (1000, 10))
    run = segments.all[:2]
    merged = Segment(0, 1)
    merged.last, merged.size, merged.alive, merged.alive_bytes = 19, 20, 2, 20
    segments.replace(run, merged)
    assert [segment.first for segment in segments.all] == [0, 20]
    assert (segments.size, segments.live) == (1020, 30)
    assert segments.find(15) is merged
