//! The stubs: each pushes its number and goes to `firn_faults_common`, which saves all registers that hold
//! arguments, asks `called` where to go, and goes there as if nothing had been.

std::arch::global_asm!(
    ".globl firn_faults_common",
    ".hidden firn_faults_common",
    "firn_faults_common:",
    "push rax",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "sub rsp, 128",
    "movups [rsp], xmm0",
    "movups [rsp + 16], xmm1",
    "movups [rsp + 32], xmm2",
    "movups [rsp + 48], xmm3",
    "movups [rsp + 64], xmm4",
    "movups [rsp + 80], xmm5",
    "movups [rsp + 96], xmm6",
    "movups [rsp + 112], xmm7",
    "mov rdi, [rsp + 192]",
    "lea rsi, [rsp + 128]",
    "call {called}",
    "mov r11, rax",
    "movups xmm0, [rsp]",
    "movups xmm1, [rsp + 16]",
    "movups xmm2, [rsp + 32]",
    "movups xmm3, [rsp + 48]",
    "movups xmm4, [rsp + 64]",
    "movups xmm5, [rsp + 80]",
    "movups xmm6, [rsp + 96]",
    "movups xmm7, [rsp + 112]",
    "add rsp, 128",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "pop rax",
    "lea rsp, [rsp + 8]",
    "jmp r11",
    called = sym crate::called,
);

unsafe extern "C" {
    fn firn_faults_common();
}

const BYTES: usize = 32;

/// Make `count` stubs; returns what gives the address of each.
pub unsafe fn make(count: usize) -> Result<impl Fn(usize) -> usize, String> {
    let len = (count * BYTES).next_multiple_of(4096);
    let (rw, none) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
    let at = libc::mmap(none, len, rw, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    if at == libc::MAP_FAILED {
        return Err("mmap failed".into());
    }
    let common = firn_faults_common as *const () as usize;
    for i in 0..count {
        let mut code = vec![0x68]; // push number
        code.extend((i as u32).to_le_bytes());
        code.extend([0x49, 0xbb]); // mov r11, common
        code.extend(common.to_le_bytes());
        code.extend([0x41, 0xff, 0xe3]); // jmp r11
        std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast::<u8>().add(i * BYTES), code.len());
    }
    if libc::mprotect(at, len, libc::PROT_READ | libc::PROT_EXEC) != 0 {
        return Err("mprotect failed".into());
    }
    Ok(move |i: usize| at as usize + i * BYTES)
}
