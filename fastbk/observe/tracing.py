"""Traces of appends and records, by OpenTelemetry's API package (the extra `tracing`).

The application sets up OpenTelemetry's SDK and says by `fastbk.connect(tracing=fastbk.Tracing())` that it wants spans
of fastbk. Without that, nothing here is called, and the package is not imported. docs/tracing.md has the spans.

Decision 128.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, cast

from fastbk.errors import ConfigError
from fastbk.option_checks import check_fields

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link

P = ParamSpec("P")
T = TypeVar("T")
Kind = Literal["client", "consumer", "internal", "producer"]
Attributes = Mapping[str, str | int | float]
HEADER_NAMES = ("traceparent", "tracestate")
"""W3C's names of headers for traces, which other systems' readers know, too."""
_UNTRACED = "fastbk.untraced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """Which appends are traced, and that metrics are told (`fastbk.observe.meter`), for `connect(tracing=...)`.

    Needs the extra `tracing`, else ConfigError.
    """

    ratio: float = 0.01
    """Share of appends outside of any span that begin a trace. Inside of a span it decides: sampled or not."""
    spans: bool = True
    """False: metrics alone, and appends cost what they do without tracing."""
    tracer_provider: object | None = None
    """OpenTelemetry's, where the application has not set one for all of the process."""
    meter_provider: object | None = None
    """The same for metrics; OpenTelemetry's NoOpMeterProvider: none are told."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.ratio <= 1:
            raise ConfigError(
                f"ratio={self.ratio!r}: must be 0 to 1, the share of appends that begin a trace"
            )
        try:
            import opentelemetry.trace  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"tracing needs OpenTelemetry's API ({error}): install fastbk[tracing], or leave `tracing` out"
            ) from error


class Tracer:
    """Begins spans, where they are wanted and sampled."""

    def __init__(self, options: Tracing) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._context = context
        self._trace = trace
        self._current_span = trace.get_current_span
        self._ratio = options.ratio
        self._propagator = TraceContextTextMapPropagator()
        provider = cast("trace.TracerProvider | None", options.tracer_provider)
        self._tracer = trace.get_tracer("fastbk", tracer_provider=provider)
        self._kinds: dict[Kind, trace.SpanKind] = {
            "client": trace.SpanKind.CLIENT,
            "consumer": trace.SpanKind.CONSUMER,
            "internal": trace.SpanKind.INTERNAL,
            "producer": trace.SpanKind.PRODUCER,
        }

    def wants_span(self) -> bool:
        """Return whether an append may have a span now: decided by the current span, or drawn."""
        current = self._current_span().get_span_context()
        is_wanted = (
            current.trace_flags.sampled if current.is_valid else random.random() < self._ratio
        )
        return is_wanted and not self._context.get_value(_UNTRACED)

    def begin(
        self, name: str, kind: Kind, attributes: Attributes, links: list[Link] | None = None
    ) -> Span | None:
        """Return a new span, in the current one if there is one; None: the SDK does not sample it."""
        span = self._tracer.start_span(
            name, kind=self._kinds[kind], attributes=dict(attributes), links=links
        )
        return Span(self, span) if span.is_recording() else None

    def received(
        self, name: str, attributes: Attributes, headers: Iterable[tuple[str, bytes]]
    ) -> None:
        """Make a span of a record that was received, with a link to its append, if that was traced."""
        link = self.link_of(headers)
        if link is not None:
            span = self.begin(name, "consumer", attributes, [link])
            if span is not None:
                span.end()

    def link_of(self, headers: Iterable[tuple[str, bytes]]) -> Link | None:
        """Return a link to the append that these headers of a record name; None: it was not traced."""
        carrier = {
            name: value.decode("ascii", "replace")
            for name, value in headers
            if name in HEADER_NAMES
        }
        if not carrier:
            return None
        found = self._propagator.extract(carrier, self._context.Context())
        there = self._trace.get_current_span(found).get_span_context()
        return self._trace.Link(there) if there.is_valid and there.trace_flags.sampled else None

    def call_within(
        self, span: Span | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function in `span`; None: where it begins no span, whatever span is the current one."""
        found = self._context.set_value(_UNTRACED, True) if span is None else span.as_context()
        token = self._context.attach(found)
        try:
            return function(*args, **kwargs)
        finally:
            self._context.detach(token)

    def child(self, parent: Span, name: str, kind: Kind, attributes: Attributes) -> Span:
        """Return a new span in another one, which may have ended."""
        made = self._tracer.start_span(
            name, parent.as_context(), kind=self._kinds[kind], attributes=dict(attributes)
        )
        return Span(self, made)

    def context_with(self, span: trace.Span) -> Context:
        """Return the current context with that span in it."""
        return self._trace.set_span_in_context(span, self._context.Context())

    def headers_of(self, context: Context) -> list[tuple[str, bytes]]:
        """Return what a record's headers say of a context's span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context)
        return [(name, value.encode()) for name, value in carrier.items()]

    def error_status(self, reason: str) -> trace.Status:
        """Return a span's status for what failed."""
        return self._trace.Status(self._trace.StatusCode.ERROR, reason)


class Span:
    """One span that is recorded."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    def as_context(self) -> Context:
        """Return a context in which it is the current span."""
        return self._tracer.context_with(self._span)

    def headers(self) -> list[tuple[str, bytes]]:
        """Return the headers of a record that lead its readers here."""
        return self._tracer.headers_of(self.as_context())

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Span:
        """Return a new span in it."""
        return self._tracer.child(self, name, kind, attributes)

    def link(self, other: Span) -> None:
        """Add a link to another span."""
        self._span.add_link(other._span.get_span_context())

    def event(self, name: str, attributes: Attributes) -> None:
        """Add an event, now."""
        self._span.add_event(name, dict(attributes))

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        self._span.set_attributes(dict(attributes))

    def fail(self, reason: str) -> None:
        """End it with an error."""
        self._span.set_status(self._tracer.error_status(reason))
        self._span.end()

    def end(self) -> None:
        """End it."""
        self._span.end()


@cache
def tracer_of(options: Tracing | None) -> Tracer | None:
    """Return what begins spans; None: nothing is to."""
    return None if options is None or not options.spans else Tracer(options)


def links_of(headers: Iterable[tuple[str, bytes]]) -> list[Link]:
    """Return links to the append of a record with these headers, for a span of the application: one, or none.

    tracer.start_as_current_span("bill", links=fastbk.links_of(record.headers))

    Raises ConfigError without the extra `tracing`.
    """
    tracer = tracer_of(Tracing())
    assert tracer is not None
    link = tracer.link_of(headers)
    return [] if link is None else [link]
