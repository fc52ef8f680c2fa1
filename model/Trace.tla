-------------------------------- MODULE Trace --------------------------------
(***************************************************************************)
(* Is what a simulation did a behaviour of Ledger?  Each event of a trace  *)
(* has to be a step of Ledger, or one that changes nothing and finds what  *)
(* it claims.  Between events clients may take the steps that leave no     *)
(* event: decisions from what they know.                                   *)
(*                                                                         *)
(* A client is moved on only when its next event comes: until then nobody  *)
(* can see whether it has decided.  A trace is accepted when some          *)
(* behaviour consumes it to its end; how far each came is printed.         *)
(***************************************************************************)
EXTENDS Ledger, TLC

CONSTANT Traces     \* a sequence of [version, ensemble, events]

VARIABLES
    trace,      \* which trace
    position    \* its next event

traceVars == <<trace, position, vars>>

Events == Traces[trace].events
Event == Events[position]

TraceInit ==
    \E t \in 1 .. Len(Traces) :
        /\ trace = t
        /\ position = 1
        /\ InitWith(Traces[t].ensemble, Traces[t].version)

Requested(m) == m.client = Event.client /\ m.bookie = Event.bookie /\ m.entry = Event.entry

FencedByNow == Event.recovery => store[Event.bookie].fenced

-----------------------------------------------------------------------------
(* Steps without an event.                                                 *)

ByWriter == Event.client = Writer
By(r) == Event.client = r

\* Bookies are sent their shares one after the other, so an entry may be sent before a lower one is.  The lower one has
\* been encoded by then; its LAC is in the trace where it is sent at last.
LacOf(entry) ==
    LET sendings == {i \in position .. Len(Events) :
                        /\ Events[i].event = "AddSent" /\ Events[i].client = Event.client
                        /\ Events[i].entry = entry}
    IN  IF sendings = {} THEN Event.last ELSE Events[CHOOSE i \in sendings : \A j \in sendings : i <= j].last

WriterDecides ==
    /\ ByWriter
    /\ \/ Event.event = "AddSent" /\ Event.entry > writer.next /\ WriterSends(LacOf(writer.next))
       \/ WriterHearsSuccess
       \/ WriterReadsAgain
       \/ Event.event \in {"EnsembleCas", "CloseCas"} /\ WriterReadsNames
       \/ /\ Event.event = "EnsembleCas"
          /\ \/ WriterPlansChange([version |-> writer.version + 1, state |-> "open", last |-> None,
                                   segments |-> WithSegment(writer.segments, writer.lac + 1, Event.ensemble)])
             \/ WriterCasUnknown
       \/ /\ Event.event = "CloseCas"
          /\ WriterPlansClose \/ WriterPlansCloseAndNames(Event.segments) \/ WriterCasUnknown

\* What a recoverer does once it has been covered.
AfterCover == {"ReadOk", "ReadNo", "ReadUnknown", "AddSent", "CloseCas"}

RecovererDecides(r) ==
    /\ By(r)
    /\ \/ RecovererHearsSuccess(r)
       \/ /\ Event.event = "AddSent"
          /\ Event.entry > recoverer[r].found + 1
          /\ LacOf(recoverer[r].found + 1) <= recoverer[r].start
          /\ RecovererFinds(r, LacOf(recoverer[r].found + 1))
       \/ Event.event = "RecoveryCas" /\ (RecovererStarts(r) \/ RecovererMarkReadsAgain(r) \/ RecovererCasUnknown(r))
       \/ /\ Event.event \in AfterCover
          /\ \E bookies \in SUBSET {b \in Bookies : recoverer[r].heard[b] /= Silent} : RecovererIsCovered(r, bookies)
       \/ /\ Event.event = "CloseCas"
          /\ \/ RecovererMisses(r)
             \/ RecovererPlansClose(r)
             \/ RecovererCloseReadsAgain(r)
             \/ RecovererCasUnknown(r)

-----------------------------------------------------------------------------
(* Steps that are events.  An event that changes nothing in Ledger still   *)
(* has to be true.                                                         *)

WriterAdd ==
    \/ /\ Event.entry = writer.next
       /\ Event.bookie \in WriteSet(Present, Event.entry)
       /\ WriterSends(Event.last)
    \/ \E m \in adds : Requested(m) /\ m.lac = Event.last /\ UNCHANGED vars

RecoveryAdd(r) ==
    \/ /\ Event.entry = recoverer[r].found + 1
       /\ Event.last <= recoverer[r].start
       /\ Event.bookie \in WriteSet(LastOf(recoverer[r].work).ensemble, Event.entry)
       /\ RecovererFinds(r, Event.last)
    \/ \E m \in adds : Requested(m) /\ m.lac = Event.last /\ UNCHANGED vars

\* Of an entry that has been decided, or of a client that does not recover, an answer is only checked.
ReadAnswer(held) ==
    IF Event.recovery /\ recoverer[Event.client].phase = "read" /\ Event.entry > recoverer[Event.client].found
    THEN /\ held <=> Event.entry \in store[Event.bookie].entries
         /\ store[Event.bookie].fenced
         /\ BookieAnswersRead(Event.client, Event.bookie, Event.entry)
    ELSE /\ FencedByNow
         /\ Event.recovery => recoverer[Event.client].phase \in {"read", "settle", "close", "done"}
         /\ IF held THEN Event.entry \in store[Event.bookie].entries
            ELSE Event.entry \notin store[Event.bookie].entries /\ ~store[Event.bookie].limbo
         /\ UNCHANGED vars

LacAnswer ==
    /\ FencedByNow
    /\ ~store[Event.bookie].limbo \/ store[Event.bookie].entries /= {}
    /\ Event.last <= store[Event.bookie].lac
    /\ IF Event.recovery /\ recoverer[Event.client].phase = "fence"
       THEN BookieAnswersLac(Event.client, Event.bookie, Event.last)
       ELSE UNCHANGED vars

Happens ==
    CASE Event.event = "AddSent" -> IF Event.recovery THEN RecoveryAdd(Event.client) ELSE WriterAdd
      [] Event.event = "AddAck" -> \E m \in adds : Requested(m) /\ BookieTakesAdd(m)
      [] Event.event = "AddRefused" ->
            /\ ~Event.recovery
            /\ store[Event.bookie].fenced
            /\ \E m \in adds : Requested(m)
            /\ UNCHANGED vars
      [] Event.event = "Acked" -> Event.entry = writer.lac + 1 /\ WriterAcknowledges
      [] Event.event = "LacWrite" ->
            \/ BookieTakesLac(Event.bookie, Event.last)
            \/ Event.last <= store[Event.bookie].lac /\ UNCHANGED vars
      [] Event.event = "Fenced" -> BookieFences(Event.client, Event.bookie)
      [] Event.event = "LacRead" -> LacAnswer
      [] Event.event = "ReadOk" -> ReadAnswer(TRUE)
      [] Event.event = "ReadNo" -> ReadAnswer(FALSE)
      [] Event.event = "ReadUnknown" -> UNCHANGED vars
      [] Event.event = "EnsembleCas" ->
            IF Event.recovery THEN RecovererChanges(Event.client, Event.first, Event.ensemble)
            ELSE /\ writer.plan.state = "open"
                 /\ Event.first = LastOf(writer.plan.segments).first
                 /\ Event.ensemble = LastOf(writer.plan.segments).ensemble
                 /\ Event.version = writer.plan.version
                 /\ StoreAppliesLate(writer.plan)
      [] Event.event = "NameCas" ->
            ByWriter /\ Event.version = meta.version + 1 /\ WriterNames(Event.segments)
      [] Event.event = "RecoveryCas" ->
            LET plan == recoverer[Event.client].plan
            IN  plan.state = "recovery" /\ plan.version = Event.version /\ StoreAppliesLate(plan)
      [] Event.event = "RecoveryJoin" ->
            /\ meta.state = "recovery" /\ meta.version = Event.version
            /\ RecovererStarts(Event.client) \/ RecovererMarkReadsAgain(Event.client)
      [] Event.event = "CloseCas" ->
            LET plan == IF ByWriter THEN writer.plan ELSE recoverer[Event.client].plan
            IN  /\ plan.state = "closed" /\ plan.version = Event.version
                /\ plan.last = Event.last /\ plan.segments = Event.segments
                /\ StoreAppliesLate(plan)
      [] Event.event = "OtherCas" -> Event.version = meta.version + 1 /\ StrangerEdits
      [] Event.event = "Crash" -> UNCHANGED vars
      [] Event.event = "Wipe" -> BookieIsWiped(Event.bookie)

-----------------------------------------------------------------------------
TraceNext ==
    /\ position <= Len(Events)
    /\ \/ /\ Happens
          /\ position' = position + 1
          /\ UNCHANGED trace
       \/ /\ WriterDecides \/ \E r \in Recoverers : RecovererDecides(r)
          /\ UNCHANGED <<trace, position>>

TraceSpec == TraceInit /\ [][TraceNext]_traceVars

ASSUME \A t \in 1 .. Len(Traces) : TLCSet(t, 0)

\* Always true; prints how far a trace has come, each position once.
Progress ==
    TLCGet(trace) < position => TLCSet(trace, position) /\ PrintT(<<"reached", trace, position - 1, Len(Events)>>)
=============================================================================
