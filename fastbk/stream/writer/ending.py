"""The end of a stream's writer: its last segment is closed, and one that was made ahead is taken back."""

from __future__ import annotations

from fastbk.errors import ClientClosed, MetadataConflict, QuorumTimeout, WriterFenced
from fastbk.stream.chain.chain import Chain
from fastbk.stream.chain.changes import Contents, check_epoch, close_segment
from fastbk.stream.chain.segment_slots import segment_works
from fastbk.stream.context import StreamContext
from fastbk.stream.writer.engine import AppendEngine


async def end_segments(context: StreamContext, engine: AppendEngine, epoch: int) -> None:
    """Close the segment that is written, and remove the next one, which is empty. Raises what ended the writer."""
    keeper = engine.keeper
    engine.roll_no_more()
    if engine.segment is not None:
        keeper.end(engine.segment)
    await keeper.until_idle()
    if engine.failure is not None:
        raise engine.failure.copy()
    if keeper.ready is None:
        return
    # Nothing was written to it: it goes, and its ledger is deleted as it is.
    unused = keeper.take().ledger
    unused.abandon(ClientClosed(f"{context.name}: the writer was closed"))

    def decide(chain: Chain) -> Chain:
        check_epoch(chain, epoch)
        return close_segment(chain, unused.ledger_id, Contents(0))

    try:
        async with keeper.turn():
            keeper.known = await context.store.change(decide, keeper.known)
    except MetadataConflict as error:
        engine.fail(error)
        raise WriterFenced(
            f"{context.name}: another writer has opened it: {error}", outcome="written"
        ) from error


def ended_too_late(context: StreamContext, engine: AppendEngine) -> QuorumTimeout:
    """Return the error of a segment that could not be ended in time, with what kept it as its cause."""
    trouble = engine.keeper.trouble or segment_works(context.client).trouble
    error = QuorumTimeout(
        f"{context.name}: its segment could not be ended in time ({trouble}); all appends are kept, and it is"
        " ended when that is possible, by whoever writes the stream then",
        outcome="written",
    )
    error.__cause__ = trouble
    return error
