"""Where Apache BookKeeper keeps what in ZooKeeper: names of nodes, and the paths of ledgers in its layouts. No I/O.

<root>/LAYOUT, INSTANCEID        which layout this is, and which cluster
<root>/available/<bookie>        writable bookies (ephemeral); available/readonly/<bookie>: those that are not
<root>/cookies/<bookie>          every bookie that ever was, until it is taken out of the cluster
<root>/idgen, idgen-long         where ledger ids are drawn
<root>/00/0000/L0001             a ledger with an id below 2^31-1 in the hierarchical layout
<root>/000/0000/0000/0000/L0001  any other one there, and every one in the long hierarchical layout
<root>/L0000000001               a ledger in the flat layout
<root>/ID-fastbk/                what only fastbk knows of: identities, deleted ids, lock holders (once `fastbk`)
<root>/../bookies                what Pulsar's operators say of where bookies are; only read here

Apache's listings, `metaformat` and `nukeexistingcluster` know what may lie below the root by its name, and take what
begins with `ID-` for a remainder of drawn ids, which they pass by, or remove with the rest. Any other name has
`nukeexistingcluster` refuse.

Decision 72.
"""

from __future__ import annotations

import enum
import re

from fastbk.meta.rollback import HOLD_PATH, MARK_PATH
from fastbk.model.ids import ID_MAX, BookieId, LedgerId

ROOT_DEFAULT = "/ledgers"
OWN_NAME = "ID-fastbk"
OWN_NAME_OLD = "fastbk"
"""What OWN_NAME was. A cluster with this one and not the other keeps it (`fastbk.meta.zookeeper.store.find_paths`)."""
SHORT_ID_END = 2**31 - 1
"""Ids from here on do not fit the short form, and are not drawn by the short generator."""

_FACTORY_PACKAGE = "org.apache.bookkeeper.meta."
_LAYOUT_FORMAT = "2"

DELETED_BUCKET_IDS = 4096
_DELETED_BUCKETS_A_FOLDER_BITS = 9


class Layout(enum.Enum):
    """How ledgers' ids become paths; the values are the words of metadata URIs."""

    FLAT = "flat"
    HIERARCHICAL = "hierarchical"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    LONG_HIERARCHICAL = "longhierarchical"

    @property
    def factory_class(self) -> str:
        """The name of Apache's class that the node LAYOUT says."""
        return _FACTORY_PACKAGE + _CLASSES[self]

    @property
    def id_end(self) -> int:
        """The first id that has no path in this layout."""
        return SHORT_ID_END if self is Layout.LEGACY_HIERARCHICAL else ID_MAX + 1

    @property
    def draws_long_ids(self) -> bool:
        """Whether ids go on beyond 31 bits once those are used up."""
        return self in (Layout.HIERARCHICAL, Layout.LONG_HIERARCHICAL)


_CLASSES = {
    Layout.FLAT: "FlatLedgerManagerFactory",
    Layout.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    Layout.LEGACY_HIERARCHICAL: "LegacyHierarchicalLedgerManagerFactory",
    Layout.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
}

# Lengths of the parts of an id, by the length of a path's first part. Both forms are complete: a
# shorter id has zeros.
_SHORT_PARTS = (2, 4, 4)
_LONG_PARTS = (3, 4, 4, 4, 4)
_FORMS: dict[Layout, tuple[tuple[int, ...], ...]] = {
    Layout.FLAT: (),
    Layout.HIERARCHICAL: (_SHORT_PARTS, _LONG_PARTS),
    Layout.LEGACY_HIERARCHICAL: (_SHORT_PARTS,),
    Layout.LONG_HIERARCHICAL: (_LONG_PARTS,),
}
_FLAT_NAME = re.compile(r"L(\d{10,19})")


def forms_of(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the forms that ids take in a tree layout, in the order of the ids they hold; none for the flat one."""
    return _FORMS[layout]


def form_of(layout: Layout, ledger_id: LedgerId) -> tuple[int, ...]:
    """Return how many digits each part of this id's path has."""
    forms = _FORMS[layout]
    return forms[0] if len(forms) == 1 or ledger_id < SHORT_ID_END else forms[1]


def parts_of(form: tuple[int, ...], ledger_id: LedgerId) -> list[str]:
    """Return the names of the nodes on the way to a ledger, the last one with its L."""
    digits = f"{ledger_id:0{sum(form)}d}"
    parts = []
    for count in form:
        parts.append(digits[:count])
        digits = digits[count:]
    parts[-1] = f"L{parts[-1]}"
    return parts


def ledger_path(root: str, layout: Layout, ledger_id: LedgerId) -> str:
    """Return the path of a ledger's node."""
    if layout is Layout.FLAT:
        return f"{root}/L{ledger_id:010d}"
    return "/".join([root, *parts_of(form_of(layout, ledger_id), ledger_id)])


def flat_ledger_id(name: str) -> LedgerId | None:
    """Return the id of a child of the root in the flat layout, None if it is no ledger."""
    match = _FLAT_NAME.fullmatch(name)
    if match is None or int(match[1]) > ID_MAX or f"L{int(match[1]):010d}" != name:
        return None
    return int(match[1])


def is_part(name: str, digits: int, *, is_leaf: bool) -> bool:
    """Return whether a child's name can be a part of a ledger's path; whatever else lies there is passed by."""
    text = name[1:] if is_leaf and name.startswith("L") else name
    has_prefix = name.startswith("L") == is_leaf
    return has_prefix and len(text) == digits and text.isascii() and text.isdigit()


def layout_text(layout: Layout) -> bytes:
    """Return what the node LAYOUT says."""
    return f"{_LAYOUT_FORMAT}\n{layout.factory_class}:1".encode()


def parse_layout(raw: bytes) -> Layout:
    """Return the layout that the node LAYOUT names; raise ValueError with what it says if that is not known."""
    text = raw.decode("utf-8", "replace")
    found_format, _, rest = text.partition("\n")
    class_name, _, version = rest.strip().partition(":")
    for layout in Layout:
        if (found_format, class_name, version) == (_LAYOUT_FORMAT, layout.factory_class, "1"):
            return layout
    raise ValueError(text)


class Paths:
    """The paths of one cluster below `root` (as "/ledgers")."""

    def __init__(self, root: str, own_name: str = OWN_NAME) -> None:
        """`own_name`: of the node that holds what only fastbk knows of."""
        self.root = root
        self.layout = f"{root}/LAYOUT"
        self.instance_id = f"{root}/INSTANCEID"
        self.available = f"{root}/available"
        self.readonly = f"{root}/available/readonly"
        self.cookies = f"{root}/cookies"
        self.idgen = f"{root}/idgen"
        self.idgen_long = f"{root}/idgen-long"
        self.own = f"{root}/{own_name}"
        self.identities = f"{self.own}/identities"
        self.deleted = f"{self.own}/deleted"
        self.records = f"{self.own}/records"
        self.record_deletions = f"{self.own}/record_deletions"
        self.hold = f"{self.records}/{HOLD_PATH}"
        self.mark = f"{self.records}/{MARK_PATH}"
        self.pulsar_racks = f"{root.rpartition('/')[0]}/bookies"

    def registration(self, bookie_id: BookieId, *, writable: bool) -> str:
        """Return where a bookie is registered."""
        return f"{self.available if writable else self.readonly}/{bookie_id}"

    def cookie(self, bookie_id: BookieId) -> str:
        """Return the path of a bookie's cookie."""
        return f"{self.cookies}/{bookie_id}"

    def identity(self, bookie_id: BookieId) -> str:
        """Return the path of a bookie's identity."""
        return f"{self.identities}/{bookie_id}"

    def deleted_bucket(self, ledger_id: LedgerId) -> str:
        """Return the node that remembers the deleted ones of this id and its 4,095 neighbours."""
        bucket = ledger_id // DELETED_BUCKET_IDS
        folder = bucket >> _DELETED_BUCKETS_A_FOLDER_BITS
        return (
            f"{self.deleted}/{folder:011x}/{bucket & (1 << _DELETED_BUCKETS_A_FOLDER_BITS) - 1:03x}"
        )
