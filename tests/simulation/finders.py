"""For each planted fault the seed that found it, from fresh ones; `./dev sim MUTATIONS=1` looks for others."""

FINDERS: dict[str, int] = {
    "recovery-reads-do-not-fence": 7000977,  # I2
    "one-fence-is-enough": 7000030,  # I2
    "recovery-reads-the-last-ensemble-only": 234103493751,  # I2
    "one-no-proves-missing": 7000031,  # I2
    "cannot-tell-is-no": 7000072,  # I2
    "io-error-is-no": 7000903,  # I2
    "silence-is-no": 7000006,  # I2
    "damage-is-no": 8000507,  # I5
    "recovery-closes-before-rewriting": 7000021,  # I18
    "rewriting-one-ack-short": 7000007,  # I18
    "rewriting-without-the-flag": 7000000,  # I20
    "rewriting-names-nobody-new": 7000014,  # I18
    "rewriting-confirms-itself": 7000400,  # I5
    "recovery-without-taking-over": 7000137,  # I18
    "length-of-the-newest": 594716830579,  # I10
    "recoverer-moves-the-end": 7000005,  # I8
    "acknowledges-in-one-rack": 7700006,  # I1
    "acknowledges-in-one-rack-out-of-order": 7700294,  # I1
    "recovery-wants-one-rack-more": 7700014,  # I2
    "unrecorded-members-are-nowhere": 7701331,  # I2
    "racks-are-lost-at-a-change": 7700011,  # I24
    "replacement-is-where-its-predecessor-was": 7700205,  # I1
    "rewriting-in-one-rack": 7700109,  # I18
    "recovery-waits-for-the-plain-count": 7700136,  # I20
    "choice-does-not-span": 7700096,  # I20
    "conflict-is-success": 7000005,  # I10
    "unknown-is-success": 7000009,  # I10
    "writer-closes-a-closed-ledger": 985908868233,  # I8
    "writer-closes-at-what-it-sent": 449698832574,  # I18
    "one-ack-short": 7000000,  # I1
    "acks-overtake": 7000039,  # I1
    "no-freeze": 61663647416,  # I18
    "ack-of-replaced-kept": 7000017,  # I1
    "ack-of-replaced-counted": 7000172,  # I1
    "fragment-starts-too-late": 7000002,  # I1
    "change-loses-the-rule": 7000002,  # I16
    "writer-changes-a-fenced-ledger": 7000035,  # I8
    "lac-is-what-was-sent": 7000002,  # I10
    "writer-never-thaws": 7000148,  # I20
    "nothing-is-sent-again": 7000301,  # I20
    "deferred-ledger-changes-bookies": 7000008,  # I21
    "fence-is-not-replayed": 1076840228729,  # I12
    "key-is-not-replayed": 7000002,  # I13
    "fence-is-not-asked": 7000000,  # I12
    "limbo-says-no": 7000004,  # I11
    "states-are-not-loaded": 7000004,  # I11
    "reader-believes-one-no": 7000023,  # I5
    "reader-proves-by-old-metadata": 787802786070,  # I5
    "reader-leaps-gaps": 7000015,  # I5
    "piggyback-without-proof": 7000152,  # I7
    "lac-begins-in-the-last-fragment": 7000001,  # I7
    "repair-names-first": 7000017,  # I19
    "repair-asks-no-other-region": 767135566723,  # I19
    "close-marks-nothing": 2100901226,  # I22
    "replaced-bookie-lacks-nothing": 112762213017,  # I22
    "replacement-named-too-early": 911919046110,  # I19
    "replacement-named-for-what-was-given-up": 1010014233512,  # I19
    "away-members-owe-nothing": 5204619,  # I23
    "away-members-are-not-marked": 432081689447,  # I23
}

# Too rare for seeds: only their scripts notice them.
SCRIPTED = (
    "rewriting-keeps-acks-of-replaced",
    "index-overflows",
    "limbo-forgets-recoveries",
    "rebirth-voids-no-names",
    "repair-names-a-bookie-started-anew",
    "repair-without-the-flag",
)
