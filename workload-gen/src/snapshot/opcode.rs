//! The opcodes of pickle protocols 2 to 5 by their names in Python's `pickletools`.

pub(super) const MARK: u8 = b'(';
pub(super) const STOP: u8 = b'.';
pub(super) const BINFLOAT: u8 = b'G';
pub(super) const BININT: u8 = b'J';
pub(super) const BININT1: u8 = b'K';
pub(super) const BININT2: u8 = b'M';
pub(super) const NONE: u8 = b'N';
pub(super) const BINSTRING: u8 = b'T';
pub(super) const SHORT_BINSTRING: u8 = b'U';
pub(super) const BINUNICODE: u8 = b'X';
pub(super) const BINBYTES: u8 = b'B';
pub(super) const SHORT_BINBYTES: u8 = b'C';
pub(super) const EMPTY_LIST: u8 = b']';
pub(super) const APPEND: u8 = b'a';
pub(super) const APPENDS: u8 = b'e';
pub(super) const EMPTY_DICT: u8 = b'}';
pub(super) const SETITEM: u8 = b's';
pub(super) const SETITEMS: u8 = b'u';
pub(super) const EMPTY_TUPLE: u8 = b')';
pub(super) const TUPLE: u8 = b't';
pub(super) const BINGET: u8 = b'h';
pub(super) const LONG_BINGET: u8 = b'j';
pub(super) const BINPUT: u8 = b'q';
pub(super) const LONG_BINPUT: u8 = b'r';
pub(super) const PROTO: u8 = 0x80;
pub(super) const TUPLE1: u8 = 0x85;
pub(super) const TUPLE2: u8 = 0x86;
pub(super) const TUPLE3: u8 = 0x87;
pub(super) const NEWTRUE: u8 = 0x88;
pub(super) const NEWFALSE: u8 = 0x89;
pub(super) const LONG1: u8 = 0x8a;
pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
pub(super) const BINUNICODE8: u8 = 0x8d;
pub(super) const BINBYTES8: u8 = 0x8e;
pub(super) const MEMOIZE: u8 = 0x94;
pub(super) const FRAME: u8 = 0x95;
pub(super) const BYTEARRAY8: u8 = 0x96;

/// What an opcode that the reader does not carry out would have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// It looks up or calls Python code.
    RunsCode,
    /// It belongs to the text protocols 0 and 1.
    TextProtocol,
    /// It is plain data, but of a kind that no snapshot contains.
    NotInSnapshots,
    /// No protocol has it.
    Unknown,
}

/// The name of an opcode.
pub(super) fn name(op: u8) -> &'static str {
    match op {
        MARK => "MARK",
        STOP => "STOP",
        BINFLOAT => "BINFLOAT",
        BININT => "BININT",
        BININT1 => "BININT1",
        BININT2 => "BININT2",
        NONE => "NONE",
        BINSTRING => "BINSTRING",
        SHORT_BINSTRING => "SHORT_BINSTRING",
        BINUNICODE => "BINUNICODE",
        BINBYTES => "BINBYTES",
        SHORT_BINBYTES => "SHORT_BINBYTES",
        EMPTY_LIST => "EMPTY_LIST",
        APPEND => "APPEND",
        APPENDS => "APPENDS",
        EMPTY_DICT => "EMPTY_DICT",
        SETITEM => "SETITEM",
        SETITEMS => "SETITEMS",
        EMPTY_TUPLE => "EMPTY_TUPLE",
        TUPLE => "TUPLE",
        BINGET => "BINGET",
        LONG_BINGET => "LONG_BINGET",
        BINPUT => "BINPUT",
        LONG_BINPUT => "LONG_BINPUT",
        PROTO => "PROTO",
        TUPLE1 => "TUPLE1",
        TUPLE2 => "TUPLE2",
        TUPLE3 => "TUPLE3",
        NEWTRUE => "NEWTRUE",
        NEWFALSE => "NEWFALSE",
        LONG1 => "LONG1",
        SHORT_BINUNICODE => "SHORT_BINUNICODE",
        BINUNICODE8 => "BINUNICODE8",
        BINBYTES8 => "BINBYTES8",
        MEMOIZE => "MEMOIZE",
        FRAME => "FRAME",
        BYTEARRAY8 => "BYTEARRAY8",
        _ => refused(op).0,
    }
}

/// The name of an opcode that is not carried out, and why.
pub(super) fn refused(op: u8) -> (&'static str, Refusal) {
    use Refusal::*;
    match op {
        b'c' => ("GLOBAL", RunsCode),
        0x93 => ("STACK_GLOBAL", RunsCode),
        b'R' => ("REDUCE", RunsCode),
        b'b' => ("BUILD", RunsCode),
        b'i' => ("INST", RunsCode),
        b'o' => ("OBJ", RunsCode),
        0x81 => ("NEWOBJ", RunsCode),
        0x92 => ("NEWOBJ_EX", RunsCode),
        0x82 => ("EXT1", RunsCode),
        0x83 => ("EXT2", RunsCode),
        0x84 => ("EXT4", RunsCode),
        b'P' => ("PERSID", RunsCode),
        b'Q' => ("BINPERSID", RunsCode),
        0x97 => ("NEXT_BUFFER", RunsCode),
        0x98 => ("READONLY_BUFFER", RunsCode),
        b'I' => ("INT", TextProtocol),
        b'L' => ("LONG", TextProtocol),
        b'F' => ("FLOAT", TextProtocol),
        b'S' => ("STRING", TextProtocol),
        b'V' => ("UNICODE", TextProtocol),
        b'g' => ("GET", TextProtocol),
        b'p' => ("PUT", TextProtocol),
        b'd' => ("DICT", TextProtocol),
        b'l' => ("LIST", TextProtocol),
        b'0' => ("POP", NotInSnapshots),
        b'1' => ("POP_MARK", NotInSnapshots),
        b'2' => ("DUP", NotInSnapshots),
        0x8b => ("LONG4", NotInSnapshots),
        0x8f => ("EMPTY_SET", NotInSnapshots),
        0x90 => ("ADDITEMS", NotInSnapshots),
        0x91 => ("FROZENSET", NotInSnapshots),
        _ => ("no opcode", Unknown),
    }
}
