"""How Java writes an address: what ACLs and log lines compare with."""

import ipaddress


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def bare_host(host: str) -> str:
    """`::1` of `[::1]`."""
    return host.strip().removeprefix("[").removesuffix("]")


def java_address(host: str) -> str:
    """`10.0.0.1` of `::ffff:10.0.0.1`, `0:0:0:0:0:0:0:1` of `::1`; what is no address stays as it is.

    The zone of a link-local address (`fe80::1%eth0`) stays, because Java shows it too.
    """
    if ":" not in host:
        return host
    text, percent, zone = host.partition("%")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    number = int(address)
    groups = (f"{number >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))
    return ":".join(groups) + percent + zone
