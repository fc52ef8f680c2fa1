"""For each planted fault the seed that found it, from fresh ones; `./dev sim MUTATIONS=1` looks for others."""

FINDERS: dict[str, int] = {
    "recovery-reads-do-not-fence": 4000240,  # I2
    "one-fence-is-enough": 4000131,  # I2
    "recovery-reads-the-last-ensemble-only": 4000282,  # I2
    "one-no-proves-missing": 4000000,  # I2
    "cannot-tell-is-no": 4000108,  # I2
    "io-error-is-no": 4000032,  # I2
    "silence-is-no": 4000023,  # I2
    "damage-is-no": 4000158,  # I2
    "recovery-closes-before-rewriting": 4000013,  # I18
    "rewriting-one-ack-short": 4000043,  # I18
    "rewriting-without-the-flag": 4000010,  # I20
    "rewriting-names-nobody-new": 4000025,  # I18
    "rewriting-confirms-itself": 477,  # I7
    "recovery-without-taking-over": 5918,  # I18
    "length-of-the-newest": 3000003,  # I10
    "recoverer-moves-the-end": 3000003,  # I8
    "conflict-is-success": 3000003,  # I10
    "unknown-is-success": 3000015,  # I10
    "writer-closes-a-closed-ledger": 3000008,  # I8
    "writer-closes-at-what-it-sent": 3000071,  # I18
    "one-ack-short": 3000000,  # I1
    "acks-overtake": 3000003,  # I1
    "no-freeze": 3000025,  # I1
    "ack-of-replaced-kept": 3000025,  # I1
    "ack-of-replaced-counted": 3000242,  # I1
    "fragment-starts-too-late": 3000003,  # I7
    "writer-changes-a-fenced-ledger": 3000016,  # I16
    "lac-is-what-was-sent": 3000000,  # I21
    "writer-never-thaws": 3000084,  # I20
    "nothing-is-sent-again": 3000434,  # I20
    "deferred-ledger-changes-bookies": 3000228,  # I21
    "fence-is-not-replayed": 3000308,  # I12
    "key-is-not-replayed": 3000027,  # I13
    "fence-is-not-asked": 3000001,  # I12
    "limbo-says-no": 3000002,  # I11
    "states-are-not-loaded": 3000002,  # I11
    "reader-believes-one-no": 3000419,  # I5
    "reader-leaps-gaps": 3000001,  # I5
    "piggyback-without-proof": 3000614,  # I7
    "lac-begins-in-the-last-fragment": 3000000,  # I21
    "repair-names-first": 3000005,  # I19
}

# Too rare for seeds: only their scripts notice them.
SCRIPTED = (
    "rewriting-keeps-acks-of-replaced",
    "index-overflows",
    "repair-without-the-flag",
)
