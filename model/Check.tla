-------------------------------- MODULE Check --------------------------------
(***************************************************************************)
(* What the configurations need besides Ledger itself.                     *)
(***************************************************************************)
EXTENDS Ledger, TLC

\* Bookies are alike, and so are recoverers: states that differ by a renaming only are looked at once.
Symmetry == Permutations(Bookies) \cup Permutations(Recoverers)

\* Where racks count, bookies of one rack are alike, and racks of one size.
RackSymmetry ==
    {p \in Permutations(Bookies) : {{p[b] : b \in rack} : rack \in Racks} = Racks} \cup Permutations(Recoverers)

\* What was acknowledged, and all of a closed ledger, is in two racks.
InTwoRacks == \A e \in 0 .. (IF Closed THEN meta.last ELSE writer.lac) : IsAckSet(Holders(e))

\* Leads to what goes wrong when rewrites carry the recoverer's progress as their LAC: two entries are sent, none is
\* acknowledged; a first recoverer changes its ensemble in memory and rewrites both; then a second one comes.
\* Only behaviours within it are walked through, so it is for finding a planted fault and never for showing that
\* something holds.
TwoRecoveriesInTurn ==
    /\ writer.lac = None /\ writer.phase = "open"
    /\ \A b \in Bookies : store[b].fenced => writer.next = SendLimit
    /\ LET begun == {r \in Recoverers : recoverer[r].phase /= "idle"}
       IN  Cardinality(begun) = 2 => \E r \in begun : recoverer[r].changes = 1 /\ recoverer[r].found = 1
==============================================================================
