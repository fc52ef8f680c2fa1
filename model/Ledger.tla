------------------------------- MODULE Ledger -------------------------------
(***************************************************************************)
(* One ledger: a writer, recoverers, bookies, the metadata store.          *)
(*                                                                         *)
(* Requests to bookies are a set that only grows, so each may be taken     *)
(* never, late, in any order and several times.  A bookie's answer is      *)
(* known to its client as soon as it is given, but nobody has to act on    *)
(* what it knows: an answer that is lost or late is one that is not acted  *)
(* on.  A client that crashes is one that does nothing any more.  A bookie *)
(* that crashes keeps all that it has answered for, so that a crash shows  *)
(* only where a fault is planted that loses something in it.               *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
    Bookies, Recoverers,    \* sets of model values
    Writer,                 \* the writer's name
    E, Qw, Qa,              \* ensemble size, write quorum, ack quorum
    Racks,                  \* disjoint sets of bookies, of which an ack set lies in no single one; {}: it is Qa bookies
    Ordered,                \* TRUE: ensembles are sequences; FALSE: sets, which is the same when E = Qw, and symmetric
    SendLimit,              \* entries that the writer may send
    Window,                 \* entries that may be unacknowledged at once
    ReadAhead,              \* entries that a recoverer reads at once
    WriterChanges,          \* ensemble changes of the writer
    Namings,                \* times that the writer names replacements for copies of former segments
    RecoveryChanges,        \* ensemble changes of each recoverer, in its memory
    Wipes, Crashes,         \* bookies that lose their data; bookies that crash (matters with a fault only)
    Unknowns,               \* compare-and-set whose result does not arrive
    Edits,                  \* metadata changes by strangers (custom metadata)
    ExplicitLac,            \* TRUE: the writer also sends its LAC by itself, and bookies may forget LACs
    Faults                  \* names of planted faults; {} is the protocol

VARIABLES
    meta,       \* the ledger's metadata: version, state, segments, last
    late,       \* metadata that was sent by compare-and-set and whose fate its sender does not know
    applied,    \* what of it has been applied: the answer may still arrive
    store,      \* of each bookie: entries, lac, fenced, limbo
    adds,       \* add requests ever sent
    writer,     \* the writer's state
    recoverer,  \* of each recoverer: its state
    used        \* how much of the bounds above is used up

vars == <<meta, late, applied, store, adds, writer, recoverer, used>>

Planted(fault) == fault \in Faults

ASSUME Ordered \/ E = Qw
ASSUME E >= Qw /\ Qw >= Qa /\ Qa >= 1

Entries == 0 .. SendLimit - 1
None == -1          \* no entry
Silent == -2        \* a bookie that has not been heard

Maximum(set) == CHOOSE x \in set : \A y \in set : y <= x

\* Which bookies of a write set complete an add together (INV-Q5).
IsAckSet(bookies) == Cardinality(bookies) >= Qa /\ \A rack \in Racks : ~(bookies \subseteq rack)

-----------------------------------------------------------------------------
(* Ensembles and segments.                                                 *)

Members(ensemble) == IF Ordered THEN {ensemble[i] : i \in 1 .. E} ELSE ensemble

WriteSet(ensemble, entry) ==
    IF Ordered THEN {ensemble[((entry + w) % E) + 1] : w \in 0 .. Qw - 1} ELSE ensemble

Windows(ensemble) == {WriteSet(ensemble, i) : i \in 0 .. E - 1}

Replaced(ensemble, old, new) ==
    IF Ordered THEN [i \in 1 .. E |-> IF ensemble[i] = old THEN new ELSE ensemble[i]]
               ELSE (ensemble \ {old}) \cup {new}

EnsemblesOf(bookies) ==
    IF Ordered THEN {f \in [1 .. E -> bookies] : \A i, j \in 1 .. E : i /= j => f[i] /= f[j]}
               ELSE {s \in SUBSET bookies : Cardinality(s) = E}

LastOf(segments) == segments[Len(segments)]

SegmentOf(segments, entry) ==
    segments[Maximum({i \in 1 .. Len(segments) : segments[i].first <= entry} \cup {1})]

HomeOf(segments, entry) == WriteSet(SegmentOf(segments, entry).ensemble, entry)

WithSegment(segments, first, ensemble) ==
    LET segment == [first |-> first, ensemble |-> ensemble]
    IN  IF LastOf(segments).first = first
        THEN [segments EXCEPT ![Len(segments)] = segment]
        ELSE Append(segments, segment)

-----------------------------------------------------------------------------
(* Metadata.  A plan is the whole metadata that a client wants to write;   *)
(* its version is the one after the version that the client has read.      *)

NoPlan == [version |-> 0, state |-> "none", segments |-> <<>>, last |-> None]

Fits(plan) == meta.version = plan.version - 1

\* What a client finds when it reads again: is this what it wanted to write?
SameContent(read, plan) ==
    read.state = plan.state /\ read.segments = plan.segments /\ read.last = plan.last

-----------------------------------------------------------------------------
InitWith(ensemble, version) ==
    /\ meta = [version |-> version, state |-> "open", last |-> None,
               segments |-> <<[first |-> 0, ensemble |-> ensemble]>>]
    /\ late = {} /\ applied = {}
    /\ store = [b \in Bookies |-> [entries |-> {}, lac |-> None, fenced |-> FALSE, limbo |-> FALSE]]
    /\ adds = {}
    /\ writer = [phase |-> "open", next |-> 0, lac |-> None, version |-> version,
                 segments |-> <<[first |-> 0, ensemble |-> ensemble]>>,
                 acks |-> [e \in Entries |-> {}], copied |-> [e \in Entries |-> {}], plan |-> NoPlan]
    /\ recoverer = [r \in Recoverers |->
                       [phase |-> "idle", version |-> 0, base |-> <<>>, work |-> <<>>,
                        heard |-> [b \in Bookies |-> Silent], start |-> None, found |-> None,
                        yes |-> [e \in 0 .. SendLimit |-> {}], no |-> [e \in 0 .. SendLimit |-> {}],
                        acks |-> [e \in Entries |-> {}], changes |-> 0, plan |-> NoPlan,
                        sent |-> SendLimit]]
    /\ used = [changes |-> 0, namings |-> 0, wipes |-> 0, crashes |-> 0, unknowns |-> 0, edits |-> 0]

Init == \E ensemble \in EnsemblesOf(Bookies) : InitWith(ensemble, 0)

-----------------------------------------------------------------------------
(* The writer.                                                             *)

Present == LastOf(writer.segments).ensemble

\* An entry is encoded once: what is sent again carries the LAC of its first sending.
Requests(client, entry, bookies, lac) ==
    {[client |-> client, entry |-> entry, bookie |-> b, lac |-> lac] : b \in bookies}

EncodedLac(client, entry) ==
    (CHOOSE m \in adds : m.client = client /\ m.entry = entry).lac

WriterSends(lac) ==
    /\ writer.phase \in {"open", "change"}
    /\ writer.next < SendLimit
    /\ writer.next - writer.lac <= Window
    /\ lac <= writer.lac
    /\ writer' = [writer EXCEPT !.next = @ + 1]
    /\ adds' = adds \cup Requests(Writer, writer.next, WriteSet(Present, writer.next), lac)
    /\ UNCHANGED <<meta, late, applied, store, recoverer, used>>

\* Which acks count: those of the present ensemble.
Counted(entry) ==
    IF Planted("replaced bookies count") THEN writer.acks[entry]
    ELSE writer.acks[entry] \cap WriteSet(Present, entry)

\* Success is told to the application: in order, on an ack quorum, never during an ensemble change.
WriterAcknowledges ==
    LET entry == writer.lac + 1
    IN  /\ writer.phase = "open"
        /\ entry < writer.next
        /\ \/ IsAckSet(Counted(entry))
           \/ Planted("acknowledged in one rack") /\ Cardinality(Counted(entry)) >= Qa
        /\ writer' = [writer EXCEPT !.lac = entry, !.acks[entry] = {}]
        /\ UNCHANGED <<meta, late, applied, store, adds, recoverer, used>>

Pending == writer.lac + 1 .. writer.next - 1

\* The writer takes `segments` as its own: acks of bookies that are no longer responsible are void, and what is
\* pending goes to those that are now.  So may what is acknowledged: a buffer that is sent again may hold more.
Adopted(segments, version, phase) ==
    LET ensemble == LastOf(segments).ensemble
    IN  /\ writer' = [writer EXCEPT
              !.phase = phase, !.segments = segments, !.version = version,
              !.plan = IF phase = "close" THEN @ ELSE NoPlan,
              !.acks = [e \in Entries |->
                           IF e \in Pending /\ ~Planted("replaced bookies count")
                           THEN @[e] \cap WriteSet(ensemble, e) ELSE @[e]]]
        /\ adds' = adds \cup UNION {Requests(Writer, e, WriteSet(ensemble, e), EncodedLac(Writer, e)) : e \in 0 .. writer.next - 1}

ChangedEnsemble(old, new) ==
    [version |-> writer.version + 1, state |-> "open", last |-> None,
     segments |-> WithSegment(writer.segments, writer.lac + 1, Replaced(Present, old, new))]

\* A bookie seems to fail (it always may seem so): first the metadata, then the acks.
WriterPlansChange(plan) ==
    /\ \/ writer.phase = "open"
       \/ writer.phase = "change" /\ writer.plan \in late /\ writer.plan /= plan \* decided anew, result unknown
    /\ used.changes < WriterChanges
    /\ used' = [used EXCEPT !.changes = @ + 1]
    /\ IF Planted("ensemble before metadata")
       THEN /\ Adopted(plan.segments, plan.version, "open")
            /\ late' = late \cup {plan}
       ELSE /\ writer' = [writer EXCEPT !.phase = "change", !.plan = plan]
            /\ UNCHANGED <<late, applied, adds>>
    /\ UNCHANGED <<meta, applied, store, recoverer>>

WriterPlansAnyChange ==
    \E old \in Members(Present), new \in Bookies \ Members(Present) :
        WriterPlansChange(ChangedEnsemble(old, new))

\* `new` is `old` but for former segments: an entry's bookie has another one in its place only if that one has told the
\* writer that it stored the entry.  Segments may be split for it; the last one stays as it is.
OnlyNames(old, new) ==
    /\ LastOf(new) = LastOf(old)
    /\ \A e \in 0 .. LastOf(old).first - 1 :
           \/ HomeOf(new, e) \ HomeOf(old, e) \subseteq writer.copied[e]
           \/ Planted("named before stored")

\* A replacement is named for entries of a former segment.  The request is sent while the writer goes on and may arrive
\* at any time, so nothing is demanded of the writer's phase; the compare-and-set demands an open ledger.
WriterNames(segments) ==
    /\ meta.state = "open"
    /\ used.namings < Namings
    /\ used' = [used EXCEPT !.namings = @ + 1]
    /\ segments /= meta.segments
    /\ OnlyNames(meta.segments, segments)
    /\ meta' = [meta EXCEPT !.version = @ + 1, !.segments = segments]
    /\ UNCHANGED <<late, applied, store, adds, writer, recoverer>>

\* Entries first .. last of the former segment `i` are given to `new` where they were given to `old`.
Split(segments, i, first, last, old, new) ==
    LET whole == segments[i]
        before == IF whole.first < first THEN <<whole>> ELSE <<>>
        named == <<[first |-> first, ensemble |-> Replaced(whole.ensemble, old, new)]>>
        behind == IF last + 1 < segments[i + 1].first THEN <<[whole EXCEPT !.first = last + 1]>> ELSE <<>>
    IN  SubSeq(segments, 1, i - 1) \o before \o named \o behind \o SubSeq(segments, i + 1, Len(segments))

WriterNamesAny ==
    /\ used.namings < Namings
    /\ \E i \in 1 .. Len(meta.segments) - 1 :
           LET ensemble == meta.segments[i].ensemble
               range == meta.segments[i].first .. meta.segments[i + 1].first - 1
           IN  \E first \in range, last \in range, old \in Members(ensemble), new \in Bookies \ Members(ensemble) :
                   first <= last /\ WriterNames(Split(meta.segments, i, first, last, old, new))

\* The writer learns that its naming was applied, or reads it.
WriterReadsNames ==
    /\ writer.phase = "open"
    /\ meta.state = "open" /\ meta.version > writer.version
    /\ LastOf(meta.segments) = LastOf(writer.segments)
    /\ writer' = [writer EXCEPT !.version = meta.version, !.segments = meta.segments]
    /\ UNCHANGED <<meta, late, applied, store, adds, recoverer, used>>

\* Closing: nothing more is acknowledged, the last entry is the LAC.
WriterPlansCloseOf(version, segments) ==
    /\ writer' = [writer EXCEPT
          !.phase = "close", !.acks = [e \in Entries |-> {}],
          !.plan = [version |-> version + 1, state |-> "closed", segments |-> segments, last |-> writer.lac]]
    /\ UNCHANGED <<meta, late, applied, store, adds, recoverer, used>>

WriterPlansClose ==
    /\ writer.phase \in {"open", "change", "failed"}
    /\ WriterPlansCloseOf(writer.version, writer.segments)

\* The write that closes an open ledger names replacements, too.  It is WriterNames and then the close, in one version.
WriterPlansCloseAndNames(segments) ==
    /\ segments /= meta.segments
    /\ \/ writer.phase \in {"open", "change"}
       \/ writer.phase = "close" /\ writer.plan \notin late
    /\ meta.state = "open"
    /\ OnlyNames(meta.segments, segments)
    /\ WriterPlansCloseOf(meta.version, segments)

WriterKnowsItIsDone(version) ==
    IF writer.phase = "change"
    THEN Adopted(writer.plan.segments, version, "open")
    ELSE /\ writer' = [writer EXCEPT !.phase = "closed", !.plan = NoPlan]
         /\ UNCHANGED adds

WriterCasSucceeds ==
    /\ writer.phase \in {"change", "close"}
    /\ Fits(writer.plan)
    /\ meta' = writer.plan
    /\ WriterKnowsItIsDone(writer.plan.version)
    /\ UNCHANGED <<late, applied, store, recoverer, used>>

\* The answer comes after all, be the metadata what it may by then.
WriterHearsSuccess ==
    /\ writer.phase \in {"change", "close"}
    /\ writer.plan \in applied
    /\ WriterKnowsItIsDone(writer.plan.version)
    /\ UNCHANGED <<meta, late, applied, store, recoverer, used>>

\* After a conflict, or an unknown result, the writer reads the metadata and decides anew.
WriterReadsAgain ==
    /\ writer.phase \in {"change", "close"}
    /\ ~Fits(writer.plan)
    /\ \/ /\ SameContent(meta, writer.plan)
          /\ WriterKnowsItIsDone(meta.version)
       \/ /\ ~SameContent(meta, writer.plan)
          /\ writer.phase = "change"
          /\ IF meta.state = "open"
             THEN Adopted(meta.segments, meta.version, "open")
             ELSE /\ writer' = [writer EXCEPT !.phase = IF meta.state = "closed" THEN "lost" ELSE "failed", !.plan = NoPlan,
                                              !.segments = meta.segments, !.version = meta.version]
                  /\ UNCHANGED adds
       \/ /\ ~SameContent(meta, writer.plan)
          /\ writer.phase = "close"
          /\ UNCHANGED adds
          /\ IF meta.state = "closed"
             THEN writer' = [writer EXCEPT !.phase = IF meta.last = writer.lac THEN "closed" ELSE "lost", !.plan = NoPlan]
             ELSE writer' = [writer EXCEPT !.plan = [meta EXCEPT !.version = @ + 1, !.state = "closed", !.last = writer.lac]]
    /\ UNCHANGED <<meta, late, applied, store, recoverer, used>>

WriterCasUnknown ==
    /\ writer.phase \in {"change", "close"}
    /\ writer.plan \notin late
    /\ used.unknowns < Unknowns
    /\ used' = [used EXCEPT !.unknowns = @ + 1]
    /\ late' = late \cup {writer.plan}
    \* Fault: it has read again, found the old version, and goes on as if the change would never happen.
    /\ writer' = IF Planted("unknown is failure") /\ writer.phase = "change"
                 THEN [writer EXCEPT !.phase = "open", !.plan = NoPlan] ELSE writer
    /\ UNCHANGED <<meta, applied, store, adds, recoverer>>

\* The LAC by itself; like all messages it may be late, and a bookie keeps the highest.
BookieTakesLac(b, lac) ==
    /\ lac <= writer.lac
    /\ store[b].lac < lac
    /\ store' = [store EXCEPT ![b].lac = lac]
    /\ UNCHANGED <<meta, late, applied, adds, writer, recoverer, used>>

-----------------------------------------------------------------------------
(* Recoverers.                                                             *)

SetRecoverer(r, value) == recoverer' = [recoverer EXCEPT ![r] = value]

\* What a recoverer does with metadata that it has just read.
Decided(r, read) ==
    CASE read.state = "closed" -> [r EXCEPT !.phase = "done", !.plan = NoPlan]
      [] read.state = "open" ->
            [r EXCEPT !.phase = "mark", !.plan = [read EXCEPT !.version = @ + 1, !.state = "recovery"]]
      [] read.state = "recovery" ->
            [r EXCEPT !.phase = "fence", !.plan = NoPlan, !.version = read.version,
                      !.base = read.segments, !.work = read.segments]

RecovererStarts(r) ==
    /\ recoverer[r].phase = "idle"
    /\ SetRecoverer(r, Decided(recoverer[r], meta))
    /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

RecovererMarks(r) ==
    /\ recoverer[r].phase = "mark"
    /\ Fits(recoverer[r].plan)
    /\ meta' = recoverer[r].plan
    /\ SetRecoverer(r, Decided(recoverer[r], recoverer[r].plan))
    /\ UNCHANGED <<late, applied, store, adds, writer, used>>

RecovererMarkReadsAgain(r) ==
    /\ recoverer[r].phase = "mark"
    /\ ~Fits(recoverer[r].plan)
    /\ SetRecoverer(r, Decided(recoverer[r], meta))
    /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

RecovererCasUnknown(r) ==
    /\ recoverer[r].phase \in {"mark", "close"}
    /\ recoverer[r].plan \notin late
    /\ used.unknowns < Unknowns
    /\ used' = [used EXCEPT !.unknowns = @ + 1]
    /\ late' = late \cup {recoverer[r].plan}
    /\ UNCHANGED <<meta, applied, store, adds, writer, recoverer>>

RecovererHearsSuccess(r) ==
    /\ recoverer[r].phase \in {"mark", "close"}
    /\ recoverer[r].plan \in applied
    /\ SetRecoverer(r, IF recoverer[r].phase = "mark" THEN Decided(recoverer[r], recoverer[r].plan)
                                                     ELSE [recoverer[r] EXCEPT !.phase = "done"])
    /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

FenceAt(b) == store' = [store EXCEPT ![b].fenced = TRUE]

Fencing(r) == recoverer[r].phase \in {"fence", "read", "settle", "close", "done"} /\ recoverer[r].base /= <<>>

\* A fencing request is taken whose answer helps nobody: lost, late, or "cannot tell".
BookieFences(r, b) ==
    /\ Fencing(r)
    /\ ~store[b].fenced
    /\ FenceAt(b)
    /\ UNCHANGED <<meta, late, applied, adds, writer, recoverer, used>>

\* A LAC that came by itself may be forgotten in a crash, and a bookie may tell that of its last entry instead of the
\* best: any lower one is an honest answer too.  In limbo it answers by what it was given since.
BookieAnswersLac(r, b, lac) ==
    /\ recoverer[r].phase = "fence"
    /\ b \in Members(LastOf(recoverer[r].base).ensemble)
    /\ ~store[b].limbo \/ store[b].entries /= {}
    /\ lac \in None .. store[b].lac
    /\ FenceAt(b)
    /\ SetRecoverer(r, [recoverer[r] EXCEPT !.heard[b] = lac])
    /\ UNCHANGED <<meta, late, applied, adds, writer, used>>

Covers(bookies, ensemble) == \A window \in Windows(ensemble) : ~IsAckSet(window \ bookies)

RecovererIsCovered(r, bookies) ==
    LET state == recoverer[r]
        segment == LastOf(state.base)
        best == Maximum({state.heard[b] : b \in bookies} \cup {None})
        start == IF Planted("start is not clamped") THEN best ELSE Maximum({best, segment.first - 1})
    IN  /\ state.phase = "fence"
        /\ \A b \in bookies : state.heard[b] /= Silent
        /\ Covers(bookies, segment.ensemble)
        /\ SetRecoverer(r, [state EXCEPT !.phase = "read", !.start = start, !.found = start, !.sent = writer.next,
                                         !.heard = [b \in Bookies |-> Silent]])
        /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

\* Reads go by the metadata from before the recovery; each fences.
BookieAnswersRead(r, b, entry) ==
    LET state == recoverer[r]
        held == entry \in store[b].entries
    IN  /\ state.phase = "read"
        /\ entry \in state.found + 1 .. SendLimit
        /\ b \in HomeOf(state.base, entry)
        /\ held \/ ~store[b].limbo
        /\ IF Planted("reads do not fence") THEN UNCHANGED store ELSE FenceAt(b)
        /\ SetRecoverer(r, IF held THEN [state EXCEPT !.yes[entry] = @ \cup {b}]
                                   ELSE [state EXCEPT !.no[entry] = @ \cup {b}])
        /\ UNCHANGED <<meta, late, applied, adds, writer, used>>

\* Entries that are on an ack quorum of the recoverer's own ensembles, without a gap from its start.
Confirmed(r) ==
    LET state == recoverer[r]
    IN  Maximum({e \in state.start .. state.found :
            \A i \in state.start + 1 .. e : IsAckSet(state.acks[i])})

\* The LAC in what a recoverer writes is the one it began with.  Its own progress must not get there: it is on
\* ensembles that only its own memory knows.
RecoveryLac(r) == IF Planted("rewrites carry progress") THEN Confirmed(r) ELSE recoverer[r].start

RecovererFinds(r, lac) ==
    LET state == recoverer[r]
        entry == state.found + 1
    IN  /\ state.phase = "read"
        /\ entry \in Entries
        /\ state.yes[entry] /= {}
        /\ SetRecoverer(r, [state EXCEPT !.found = entry, !.yes[entry] = {}, !.no[entry] = {}])
        /\ adds' = adds \cup Requests(r, entry, WriteSet(LastOf(state.work).ensemble, entry), lac)
        /\ UNCHANGED <<meta, late, applied, store, writer, used>>

\* Those that have not said no contain no ack set: where racks do not count, Qw - Qa + 1 have said it.
ProvesMissing(nos, home) == IF Planted("one no is enough") THEN nos /= {} ELSE ~IsAckSet(home \ nos)

RecovererMisses(r) ==
    LET state == recoverer[r]
        entry == state.found + 1
    IN  /\ state.phase = "read"
        /\ ProvesMissing(state.no[entry], HomeOf(state.base, entry))
        /\ SetRecoverer(r, [state EXCEPT !.phase = "settle",
                                         !.yes = [e \in 0 .. SendLimit |-> {}], !.no = [e \in 0 .. SendLimit |-> {}]])
        /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

\* A bookie fails while entries are written again: the new ensemble stays in memory until the closing write.
RecovererChanges(r, first, ensemble) ==
    LET state == recoverer[r]
        work == WithSegment(state.work, first, ensemble)
    IN  /\ state.phase \in {"read", "settle"}
        /\ state.changes < RecoveryChanges
        /\ first \in state.start + 1 .. Confirmed(r) + 1
        /\ first >= LastOf(state.work).first \/ Planted("start is not clamped")
        /\ SetRecoverer(r, [state EXCEPT
              !.work = work, !.changes = @ + 1,
              !.acks = [e \in Entries |-> IF e >= first THEN @[e] \cap WriteSet(ensemble, e) ELSE @[e]]])
        /\ adds' = adds \cup UNION {Requests(r, e, WriteSet(ensemble, e), EncodedLac(r, e)) : e \in first .. state.found}
        /\ UNCHANGED <<meta, late, applied, store, writer, used>>

RecovererChangesAny(r) ==
    /\ recoverer[r].phase \in {"read", "settle"}
    /\ recoverer[r].changes < RecoveryChanges
    /\ LET ensemble == LastOf(recoverer[r].work).ensemble
       IN  \E old \in Members(ensemble), new \in Bookies \ Members(ensemble), first \in 0 .. SendLimit :
               RecovererChanges(r, first, Replaced(ensemble, old, new))

\* The metadata gets those segments of the recoverer's that hold something; a last segment without entries stays.
UsedSegments(state) ==
    LET tail == SelectSeq(SubSeq(state.work, Len(state.base), Len(state.work)), LAMBDA s : s.first <= state.found)
    IN  IF tail = <<>> THEN state.base ELSE SubSeq(state.base, 1, Len(state.base) - 1) \o tail

RecovererPlansClose(r) ==
    LET state == recoverer[r]
    IN  /\ state.phase = "settle"
        /\ Confirmed(r) = state.found
        /\ SetRecoverer(r, [state EXCEPT !.phase = "close", !.acks = [e \in Entries |-> {}],
              !.plan = [version |-> state.version + 1, state |-> "closed", segments |-> UsedSegments(state),
                        last |-> state.found]])
        /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

RecovererCloses(r) ==
    LET state == recoverer[r]
    IN  /\ state.phase = "close"
        /\ Fits(state.plan) \/ Planted("close without compare")
        /\ meta' = state.plan
        /\ SetRecoverer(r, [state EXCEPT !.phase = "done"])
        /\ UNCHANGED <<late, applied, store, adds, writer, used>>

\* Closed by another, or by this one's own write whose result was lost: that is the ledger.  Still in recovery: a
\* stranger's edit; write what was planned upon it.
RecovererCloseReadsAgain(r) ==
    LET state == recoverer[r]
    IN  /\ state.phase = "close"
        /\ ~Fits(state.plan)
        /\ SetRecoverer(r, IF meta.state = "closed"
                           THEN [state EXCEPT !.phase = "done", !.plan = NoPlan]
                           ELSE [state EXCEPT !.plan.version = meta.version + 1])
        /\ UNCHANGED <<meta, late, applied, store, adds, writer, used>>

-----------------------------------------------------------------------------
(* Bookies and the metadata store.                                         *)

BookieTakesAdd(m) ==
    LET b == m.bookie
        old == store[b]
        kept == [old EXCEPT !.entries = @ \cup {m.entry}, !.lac = Maximum({@, m.lac})]
    IN  /\ m \in adds
        /\ m.client /= Writer \/ ~old.fenced
        /\ store' = [store EXCEPT ![b] = kept]
        /\ IF m.client = Writer
           THEN /\ writer' = IF /\ writer.phase \in {"open", "change"} /\ m.entry > writer.lac
                                /\ b \in WriteSet(Present, m.entry) \/ Planted("replaced bookies count")
                             THEN [writer EXCEPT !.acks[m.entry] = @ \cup {b}]
                             ELSE IF /\ writer.phase \in {"open", "change"} /\ used.namings < Namings
                                     /\ m.entry < LastOf(writer.segments).first /\ b \in WriteSet(Present, m.entry)
                             THEN [writer EXCEPT !.copied[m.entry] = @ \cup {b}] ELSE writer
                /\ UNCHANGED recoverer
           ELSE /\ recoverer' = IF /\ recoverer[m.client].phase \in {"read", "settle"}
                                   /\ b \in HomeOf(recoverer[m.client].work, m.entry)
                                THEN [recoverer EXCEPT ![m.client].acks[m.entry] = @ \cup {b}] ELSE recoverer
                /\ UNCHANGED writer
        /\ UNCHANGED <<meta, late, applied, adds, used>>

\* A bookie is back under its name and without its data.  It knows so: in limbo it says "no" of nothing, and fenced
\* it completes no writer's quorum.
BookieIsWiped(b) ==
    /\ used.wipes < Wipes
    /\ used' = [used EXCEPT !.wipes = @ + 1]
    /\ LET honest == ~Planted("wiped without limbo")
       IN  store' = [store EXCEPT ![b] = [entries |-> {}, lac |-> None, fenced |-> honest, limbo |-> honest]]
    /\ UNCHANGED <<meta, late, applied, adds, writer, recoverer>>

BookieCrashes(b) ==
    /\ Planted("a crash loses the fence")
    /\ used.crashes < Crashes
    /\ store[b].fenced
    /\ used' = [used EXCEPT !.crashes = @ + 1]
    /\ store' = [store EXCEPT ![b].fenced = FALSE]
    /\ UNCHANGED <<meta, late, applied, adds, writer, recoverer>>

\* A write whose sender has stopped waiting arrives after all.
StoreAppliesLate(plan) ==
    /\ plan \in late
    /\ Fits(plan)
    /\ meta' = plan
    /\ applied' = applied \cup {plan}
    /\ UNCHANGED <<late, store, adds, writer, recoverer, used>>

StrangerEdits ==
    /\ used.edits < Edits
    /\ used' = [used EXCEPT !.edits = @ + 1]
    /\ meta' = [meta EXCEPT !.version = @ + 1]
    /\ UNCHANGED <<late, applied, store, adds, writer, recoverer>>

-----------------------------------------------------------------------------
WriterSteps ==
    \/ WriterSends(writer.lac)
    \/ WriterAcknowledges
    \/ WriterPlansAnyChange
    \/ WriterNamesAny
    \/ Namings > 0 /\ WriterReadsNames
    \/ WriterPlansClose
    \/ WriterCasSucceeds
    \/ WriterHearsSuccess
    \/ WriterReadsAgain
    \/ WriterCasUnknown
    \/ ExplicitLac /\ \E b \in Members(Present) : BookieTakesLac(b, writer.lac)

\* To keep the number of states down a bookie answers the same question once, within the recoverer's read-ahead.
RecovererSteps(r) ==
    \/ RecovererStarts(r)
    \/ RecovererMarks(r)
    \/ RecovererMarkReadsAgain(r)
    \/ RecovererHearsSuccess(r)
    \/ RecovererCasUnknown(r)
    \/ \E b \in Bookies :
           \/ /\ recoverer[r].phase \in {"fence", "read"}
              /\ b \in Members(LastOf(recoverer[r].base).ensemble)
              /\ BookieFences(r, b)
           \/ /\ recoverer[r].heard[b] = Silent
              /\ \E lac \in {store[b].lac} \cup (IF ExplicitLac THEN {None} ELSE {}) : BookieAnswersLac(r, b, lac)
           \/ \E entry \in recoverer[r].found + 1 .. recoverer[r].found + ReadAhead :
                  /\ entry <= SendLimit
                  /\ b \notin recoverer[r].yes[entry] \cup recoverer[r].no[entry]
                  /\ BookieAnswersRead(r, b, entry)
    \/ \E bookies \in SUBSET {b \in Bookies : recoverer[r].heard[b] /= Silent} : RecovererIsCovered(r, bookies)
    \/ RecovererFinds(r, RecoveryLac(r))
    \/ RecovererMisses(r)
    \/ RecovererChangesAny(r)
    \/ RecovererPlansClose(r)
    \/ RecovererCloses(r)
    \/ RecovererCloseReadsAgain(r)

Next ==
    \/ WriterSteps
    \/ \E r \in Recoverers : RecovererSteps(r)
    \/ \E m \in adds : BookieTakesAdd(m)
    \/ \E b \in Bookies : BookieIsWiped(b) \/ BookieCrashes(b)
    \/ \E plan \in late : StoreAppliesLate(plan)
    \/ StrangerEdits

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What must hold.                                                         *)

Closed == meta.state = "closed"

Holders(entry) == {b \in HomeOf(meta.segments, entry) : entry \in store[b].entries}

TypeOK ==
    /\ meta.state \in {"open", "recovery", "closed"}
    /\ writer.lac < writer.next /\ writer.next <= SendLimit
    /\ \A m \in adds : m.client \in Recoverers \cup {Writer} /\ m.entry \in Entries
    /\ \A b \in Bookies : store[b].entries \subseteq Entries

\* Nothing that was acknowledged lies behind the end of a closed ledger.
NoTruncation == Closed => writer.lac <= meta.last

\* A reader of a closed ledger, or below the LAC, never gets so many "no" that it must take an entry for missing.
Agreement ==
    \A e \in 0 .. (IF Closed THEN meta.last ELSE writer.lac) :
        Cardinality({b \in HomeOf(meta.segments, e) : e \notin store[b].entries /\ ~store[b].limbo}) < Qw - Qa + 1

\* Every acknowledged entry is on an ack quorum of its segment, but for what was wiped since.
AckQuorumStored == \A e \in 0 .. writer.lac : Cardinality(Holders(e)) >= Qa - used.wipes

\* The same for all entries of a closed ledger: none is missing, none has too few copies.
Density == Closed => \A e \in 0 .. meta.last : Cardinality(Holders(e)) >= Qa - used.wipes

\* Once a recoverer has counted its fences, nothing that the writer sent later is acknowledged.
FencedWriterNeverAcksAbove ==
    \A r \in Recoverers : recoverer[r].phase \in {"read", "settle", "close"} => writer.lac < recoverer[r].sent

\* Whoever believes that the ledger is closed is right, and there is one end.
SingleClose ==
    /\ writer.phase = "closed" => Closed /\ meta.last = writer.lac
    /\ \A r \in Recoverers : recoverer[r].phase = "done" =>
           Closed /\ (recoverer[r].plan = NoPlan \/ recoverer[r].plan.last = meta.last)

\* No bookie has been given a LAC above what the application was told.
LacNeverPassesAcked == \A b \in Bookies : store[b].lac <= writer.lac

\* Segments follow one another, and name no bookie twice.
SegmentsOrdered ==
    /\ meta.segments[1].first = 0
    /\ \A i \in 1 .. Len(meta.segments) :
           /\ Cardinality(Members(meta.segments[i].ensemble)) = E
           /\ i > 1 => meta.segments[i - 1].first < meta.segments[i].first

\* Each version was written by somebody who had read the one before, and states go one way.
Rank(state) == CASE state = "open" -> 0 [] state = "recovery" -> 1 [] state = "closed" -> 2

MetadataByCasOnly ==
    [][meta' /= meta => meta'.version = meta.version + 1 /\ Rank(meta'.state) >= Rank(meta.state)]_meta

ClosedIsFinal ==
    [][Closed => meta'.state = meta.state /\ meta'.last = meta.last /\ meta'.segments = meta.segments]_meta

\* A LAC never falls; neither the writer's nor what a bookie was given, but for a wipe.
LacNeverFalls ==
    [][/\ writer'.lac >= writer.lac
       /\ used'.wipes = used.wipes => \A b \in Bookies : store'[b].lac >= store[b].lac]_vars
=============================================================================
