"""List what is compared and where Twofold differs: `PYTHONPATH=tests python -m interop.cases`."""

from interop.cases import ALL

print(f"{len(ALL)} cases")
reasons: dict[str, list[str]] = {}
for case in ALL:
    for label, differs in case.differs.items():
        reasons.setdefault(differs.why, []).append(f"{case}, {label}")
for reason, places in reasons.items():
    print(f"\n{reason}")
    for place in places:
        print(f"    {place}")
