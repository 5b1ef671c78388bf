"""The loops of the columnar codec, compiled by numba. Only `columnar_loading` imports this module.

Bytes are reached by their addresses, as in C, because a copy by `llvm.memcpy` is many times faster than a loop over an
array. What keeps that safe:

1. Each address comes with the end of its memory, and every length that was read from bytes is compared with what is
   left before it moves an address or is handed to a copy.
2. What is written has its room: `plan` counts for `write`, `scan` for `gather_headers`, and the keys and values that
   `scan` copies are disjoint parts of bytes that would fit as a whole.
3. All integers are signed and 64 bits wide: numba makes floats of a mixture.

An array of length 0 stands for what is not there: no validity (nothing is null), no keys at all, no headers.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FAILED = -1
MAX_BODY = 2**31 - 1  # a record's length is an int32
_LOW_57_BITS = 2**57 - 1
_LOW_63_BITS = 2**63 - 1
_MASK_32 = 0xFFFFFFFF
_M = 0x5BD1E995
_SEED = 0x9747B28C
_AHEAD = 8  # rows of a partition lie apart: so many of them are asked for in advance
_MAX_MILLIS = (2**63 - 1) // 1000

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
_BYTE = ir.IntType(8)
_WORD = ir.IntType(32)
_LONG = ir.IntType(64)


# -- memory -----------------------------------------------------------------------------------------------------------


@intrinsic
def copy(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy between two addresses."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, size = arguments
        pointers = [builder.inttoptr(address, cgutils.voidptr_t) for address in (target, source)]
        cgutils.raw_memcpy(builder, *pointers, size, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def byte_at(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        return builder.zext(builder.load(pointer), _LONG)

    return types.int64(types.int64), generate


@intrinsic
def word_at(typing_context: Any, address: Any) -> Any:
    """Four bytes, the lowest first, which need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.zext(builder.load(pointer, align=1), _LONG)

    return types.int64(types.int64), generate


@intrinsic
def put_byte(typing_context: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        builder.store(builder.trunc(arguments[1], _BYTE), pointer)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Tell the processor that this will be read soon. Any address will do, even one that is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shape = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _WORD, _WORD, _WORD])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], shape)
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(function, [pointer, *(ir.Constant(_WORD, number) for number in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


# -- varints ----------------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@njit(error_model="numpy")
def varint_size(value: int) -> int:
    raw = zigzag(value)
    size = 1
    while raw & ~127:
        raw = (raw >> 7) & _LOW_57_BITS
        size += 1
    return size


@njit(error_model="numpy")
def put_varint(address: int, value: int) -> int:
    """The address after it."""
    raw = zigzag(value)
    while raw & ~127:
        put_byte(address, raw & 127 | 128)
        address += 1
        raw = (raw >> 7) & _LOW_57_BITS
    put_byte(address, raw)
    return address + 1


@njit(error_model="numpy")
def varint(address: int, end: int) -> tuple[int, int]:
    """The number of up to 32 bits at `address` and the address after it, which is 0 where there is no such number."""
    if address < end:
        byte = byte_at(address)
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), address + 1
    return long_varint(address, end, 32)


@njit(error_model="numpy")
def varlong(address: int, end: int) -> tuple[int, int]:
    if address < end:
        byte = byte_at(address)
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), address + 1
    return long_varint(address, end, 64)


@njit(error_model="numpy")
def long_varint(address: int, end: int, bits: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    while address < end and shift < bits:
        byte = byte_at(address)
        address += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            if shift + 7 > bits and byte >> (bits - shift):
                break
            return ((raw >> 1) & _LOW_63_BITS) ^ -(raw & 1), address
        shift += 7
    return 0, 0


# -- partitions -------------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def murmur2(address: int, size: int) -> int:
    value = (_SEED ^ size) & _MASK_32
    end = address + (size & ~3)
    while address < end:
        word = word_at(address) * _M & _MASK_32
        value = (value * _M & _MASK_32) ^ ((word ^ (word >> 24)) * _M & _MASK_32)
        address += 4
    rest = size & 3
    if rest:
        word = byte_at(address)
        if rest > 1:
            word |= byte_at(address + 1) << 8
        if rest > 2:
            word |= byte_at(address + 2) << 16
        value = (value ^ word) * _M & _MASK_32
    value = (value ^ (value >> 13)) * _M & _MASK_32
    return value ^ (value >> 15)


@njit("void(int64, int64[::1], uint8[::1], int64, int32[::1])", **_OPTIONS)
def partitions(data: int, offsets: Any, valid: Any, count: int, out: Any) -> None:
    """The partition of each key; what is in `out` stays for a key that is null."""
    has_nulls = len(valid) > 0
    for row in range(len(out)):
        if not has_nulls or valid[row]:
            start = offsets[row]
            out[row] = (murmur2(data + start, offsets[row + 1] - start) & 0x7FFFFFFF) % count


@njit("boolean(int32[::1], int64[::1], int64[::1])", **_OPTIONS)
def sort_rows(partitions: Any, starts: Any, rows: Any) -> bool:
    """`rows` in the order of their partitions, else in their own; `starts` has one entry more than there are
    partitions, all 0. False where a number is none of a partition."""
    count = len(starts) - 1
    for row in range(len(partitions)):
        partition = int(partitions[row])
        if partition < 0 or partition >= count:
            return False
        starts[partition + 1] += 1
    for partition in range(count):
        starts[partition + 1] += starts[partition]
    position = starts[:-1].copy()
    for row in range(len(partitions)):
        mine = partitions[row]
        rows[position[mine]] = row
        position[mine] += 1
    return True


# -- encoding ---------------------------------------------------------------------------------------------------------


# Arrays are not handed on to helpers: numba would count references for each call.


@njit(error_model="numpy")
def field_size(size: int) -> int:
    """Of a key or a value, with its length in front; -1 for one that is null."""
    return size + varint_size(size) if size >= 0 else 1


@njit(error_model="numpy")
def put_field(address: int, source: int, size: int) -> int:
    address = put_varint(address, size)
    if size > 0:
        copy(address, source, size)
        address += size
    return address


@njit("void(int64[:, ::1], int64[::1], int64[::1], uint8[::1], int64[::1])", **_OPTIONS)
def header_sizes(lists: Any, key_offsets: Any, value_offsets: Any, value_valid: Any, out: Any) -> None:
    """What the headers of each row take, with their number in front; `lists` has the first entry and the end."""
    has_values = len(value_offsets) > 0
    has_nulls = len(value_valid) > 0
    for row in range(len(out)):
        first, end = lists[row, 0], lists[row, 1]
        size = varint_size(end - first)
        for entry in range(first, end):
            size += field_size(key_offsets[entry + 1] - key_offsets[entry])
            if has_values and not (has_nulls and value_valid[entry] == 0):
                size += field_size(value_offsets[entry + 1] - value_offsets[entry])
            else:
                size += 1
        out[row] = size


@njit("int64(int64[::1], uint8[::1], int64[::1], uint8[::1], int64[::1], int64[::1])", **_OPTIONS)
def content_sizes(
    key_offsets: Any, key_valid: Any, value_offsets: Any, value_valid: Any, headers: Any, out: Any
) -> int:
    """What each row takes in any batch: all but its length and its two deltas. The first row that is too large for a
    record, else FAILED."""
    has_keys, has_values, has_headers = len(key_offsets) > 0, len(value_offsets) > 0, len(headers) > 0
    has_null_keys, has_null_values = len(key_valid) > 0, len(value_valid) > 0
    for row in range(len(out)):
        size = 1 + (headers[row] if has_headers else 1)
        if has_keys and not (has_null_keys and key_valid[row] == 0):
            size += field_size(key_offsets[row + 1] - key_offsets[row])
        else:
            size += 1
        if has_values and not (has_null_values and value_valid[row] == 0):
            size += field_size(value_offsets[row + 1] - value_offsets[row])
        else:
            size += 1
        out[row] = size
        if size > MAX_BODY - 15:
            return row
    return FAILED


@njit("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[:, ::1])", **_OPTIONS)
def plan(rows: Any, bounds: Any, content: Any, timestamps: Any, room: int, batches: Any) -> int:
    """How many batches it takes if none goes beyond one of `bounds`; of each the end of its rows, its size without a
    header, its first and its latest timestamp."""
    same_time = len(timestamps) == 1
    index = 0
    batch = 0
    for bound in bounds:
        while index < bound:
            start = index
            used = 0
            base = latest = timestamps[0 if same_time else rows[start]]
            while index < bound:
                row = rows[index]
                body = content[row] + varint_size(index - start)
                time = base if same_time else timestamps[row]
                delta = time - base
                if (time ^ base) & (time ^ delta) < 0:
                    break  # further apart than an int64 can say
                body += varint_size(delta)
                size = body + varint_size(body)
                if used + size > room and index > start:
                    break
                used += size
                latest = max(latest, time)
                index += 1
            batches[batch, 0] = index
            batches[batch, 1] = used
            batches[batch, 2] = base
            batches[batch, 3] = latest
            batch += 1
    return batch


@njit(
    "int64(int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], uint8[::1], int64,"
    " int64[::1], uint8[::1], int64[:, ::1], int64, int64[::1], int64, int64[::1], uint8[::1])",
    **_OPTIONS,
)
def write(
    batches: Any, addresses: Any, rows: Any, content: Any, timestamps: Any,
    keys: int, key_offsets: Any, key_valid: Any,
    values: int, value_offsets: Any, value_valid: Any,
    lists: Any, header_keys: int, header_key_offsets: Any,
    header_values: int, header_value_offsets: Any, header_value_valid: Any,
) -> int:  # fmt: skip
    """The records of batches, as planned, each to its address. The first batch that came out in another size, else
    FAILED."""
    same_time = len(timestamps) == 1
    has_keys, has_values, has_headers = len(key_offsets) > 0, len(value_offsets) > 0, len(lists) > 0
    has_null_keys, has_null_values = len(key_valid) > 0, len(value_valid) > 0
    has_header_values, has_null_header_values = len(header_value_offsets) > 0, len(header_value_valid) > 0
    first_index = 0
    last_prefetched = len(rows) - _AHEAD
    for batch in range(len(addresses)):
        address = addresses[batch]
        base = batches[batch, 2]
        for index in range(first_index, batches[batch, 0]):
            row = rows[index]
            if index < last_prefetched:
                ahead = rows[index + _AHEAD]
                if has_keys:
                    prefetch(keys + key_offsets[ahead])
                if has_values:
                    prefetch(values + value_offsets[ahead])
                    prefetch(values + value_offsets[ahead] + 64)
            delta = 0 if same_time else timestamps[row] - base
            number = index - first_index
            address = put_varint(address, content[row] + varint_size(delta) + varint_size(number))
            put_byte(address, 0)
            address = put_varint(address + 1, delta)
            address = put_varint(address, number)
            start, size = 0, -1
            if has_keys and not (has_null_keys and key_valid[row] == 0):
                start = key_offsets[row]
                size = key_offsets[row + 1] - start
            address = put_field(address, keys + start, size)
            start, size = 0, -1
            if has_values and not (has_null_values and value_valid[row] == 0):
                start = value_offsets[row]
                size = value_offsets[row + 1] - start
            address = put_field(address, values + start, size)
            if not has_headers:
                put_byte(address, 0)
                address += 1
                continue
            entry, end = lists[row, 0], lists[row, 1]
            address = put_varint(address, end - entry)
            while entry < end:
                start = header_key_offsets[entry]
                address = put_field(address, header_keys + start, header_key_offsets[entry + 1] - start)
                start, size = 0, -1
                if has_header_values and not (has_null_header_values and header_value_valid[entry] == 0):
                    start = header_value_offsets[entry]
                    size = header_value_offsets[entry + 1] - start
                address = put_field(address, header_values + start, size)
                entry += 1
        if address != addresses[batch] + batches[batch, 1]:
            return batch
        first_index = batches[batch, 0]
    return FAILED


# -- decoding ---------------------------------------------------------------------------------------------------------


@njit(error_model="numpy")
def micros(millis: int) -> int:
    """The nearest that 64 bits of microseconds can say."""
    return min(max(millis, -_MAX_MILLIS), _MAX_MILLIS) * 1000


@njit(
    "int64(int64[:, ::1], int64, int64, int64[::1], int64[::1], int32[::1], int64, int32[::1], uint8[::1],"
    " int64, int32[::1], uint8[::1], int64[::1], int32[::1], int64[::1])",
    **_OPTIONS,
)
def scan(
    sections: Any, first: int, end: int,
    offsets: Any, timestamps: Any, kinds: Any,
    keys: int, key_ends: Any, key_valid: Any,
    values: int, value_ends: Any, value_valid: Any,
    header_sources: Any, header_ends: Any, totals: Any,
) -> int:  # fmt: skip
    """Check every record of these sections (address, size, count, base offset, base timestamp, append time, kind) and
    copy the parts of those whose offset is from `first` up to `end`: `keys` and `values` each have room for all bytes
    of the sections. The number of rows; FAILED for bytes that are no records, with the section in totals[3].
    totals[:3]: headers, bytes of their keys, bytes of their values; they are left to `gather_headers`."""
    row = 0
    key_total = value_total = 0
    with_headers = len(header_sources) > 0
    for section in range(len(sections)):
        address = sections[section, 0]
        stop = address + sections[section, 1]
        base_offset = sections[section, 3]
        base_timestamp = sections[section, 4]
        append_time = sections[section, 5]
        kind = sections[section, 6]
        totals[3] = section
        for _ in range(sections[section, 2]):
            length, address = varint(address, stop)
            if address == 0 or length < 1 or length > stop - address:
                return FAILED
            record_end = address + length
            delta, address = varlong(address + 1, record_end)
            if address == 0:
                return FAILED
            timestamp = base_timestamp + delta
            delta, address = varint(address, record_end)
            if address == 0:
                return FAILED
            offset = base_offset + delta
            key_size, address = varint(address, record_end)
            if address == 0 or key_size > record_end - address:
                return FAILED
            key = address
            address += max(key_size, 0)
            value_size, address = varint(address, record_end)
            if address == 0 or value_size > record_end - address:
                return FAILED
            value = address
            address += max(value_size, 0)
            headers = address
            if address >= record_end:
                return FAILED
            header_count = 0
            header_key_total = header_value_total = 0
            if byte_at(address) == 0:
                address += 1
            else:
                header_count, address = varint(address, record_end)
                if address == 0 or header_count < 0:
                    return FAILED
                for _ in range(header_count):
                    size, address = varint(address, record_end)
                    if address == 0 or size < 0 or size > record_end - address:
                        return FAILED
                    header_key_total += size
                    address += size
                    size, address = varint(address, record_end)
                    if address == 0 or size > record_end - address:
                        return FAILED
                    header_value_total += max(size, 0)
                    address += max(size, 0)
            if address != record_end:
                return FAILED
            if offset < first or offset >= end:
                continue
            offsets[row] = offset
            timestamps[row] = micros(append_time if kind else timestamp)
            kinds[row] = kind
            key_valid[row] = key_size >= 0
            value_valid[row] = value_size >= 0
            if key_size > 0:
                copy(keys + key_total, key, key_size)
                key_total += key_size
            if value_size > 0:
                copy(values + value_total, value, value_size)
                value_total += value_size
            if with_headers:
                header_sources[row] = headers
                totals[0] += header_count
                totals[1] += header_key_total
                totals[2] += header_value_total
                header_ends[row + 1] = totals[0]
            row += 1
            key_ends[row] = key_total
            value_ends[row] = value_total
        if address != stop:
            return FAILED
    return row


@njit("void(int64[::1], int64, int32[::1], int64, int32[::1], uint8[::1], int64)", **_OPTIONS)
def gather_headers(
    sources: Any, count: int, key_ends: Any, keys: int, value_ends: Any, value_valid: Any, values: int
) -> None:
    """The headers that `scan` found, and has checked: no end is needed any more."""
    reach = _LOW_63_BITS
    entry = 0
    key_total = value_total = 0
    for row in range(count):
        header_count, address = varint(sources[row], reach)
        for _ in range(header_count):
            size, address = varint(address, reach)
            copy(keys + key_total, address, size)
            key_total += size
            address += size
            size, address = varint(address, reach)
            value_valid[entry] = size >= 0
            size = max(size, 0)
            copy(values + value_total, address, size)
            value_total += size
            address += size
            entry += 1
            key_ends[entry] = key_total
            value_ends[entry] = value_total
