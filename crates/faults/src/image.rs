//! A loaded library: which functions of the server it calls, and where their addresses are kept.

use std::ffi::{c_int, c_void, CStr, CString};

/// Where a library keeps the address of a function.
pub struct Slot {
    pub name: CString,
    pub place: *mut usize,
    pub target: usize,
}

struct Search<'a> {
    ending: &'a str,
    /// Base address and dynamic section of the library.
    library: Option<(usize, *const Dyn)>,
    /// Executable segments of the program.
    program: Vec<(usize, usize)>,
}

#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
const R_GLOB_DAT: u64 = 6;
const R_JUMP_SLOT: u64 = 7;

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    let search = &mut *(data as *mut Search);
    let name = (*info).dlpi_name;
    let name = if name.is_null() { "" } else { CStr::from_ptr(name).to_str().unwrap_or("") };
    let base = (*info).dlpi_addr as usize;
    let headers = std::slice::from_raw_parts((*info).dlpi_phdr, usize::from((*info).dlpi_phnum));
    for h in headers {
        let at = base + h.p_vaddr as usize;
        // The program has no name. (Neither has the kernel's page, which holds none of its functions.)
        if name.is_empty() && h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0 {
            search.program.push((at, at + h.p_memsz as usize));
        }
        if name.ends_with(search.ending) && h.p_type == libc::PT_DYNAMIC {
            search.library = Some((base, at as *const Dyn));
        }
    }
    0
}

/// All functions of the program that the library with this ending calls.
pub unsafe fn slots(ending: &str) -> Result<Vec<Slot>, String> {
    let mut search = Search { ending, library: None, program: Vec::new() };
    libc::dl_iterate_phdr(Some(look), (&raw mut search).cast());
    let (base, mut entry) = search.library.ok_or(format!("{ending} is not loaded"))?;
    let mut table = std::collections::HashMap::new();
    while (*entry).tag != 0 {
        table.insert((*entry).tag, (*entry).value);
        entry = entry.add(1);
    }
    let get = |tag: i64| table.get(&tag).copied().unwrap_or(0);
    // The loader has made addresses of the offsets.
    let strings = get(DT_STRTAB) as *const libc::c_char;
    let symbols = get(DT_SYMTAB) as *const libc::Elf64_Sym;
    let mut found = Vec::new();
    for (at, bytes) in [(get(DT_RELA), get(DT_RELASZ)), (get(DT_JMPREL), get(DT_PLTRELSZ))] {
        let list = at as *const libc::Elf64_Rela;
        for i in 0..bytes as usize / size_of::<libc::Elf64_Rela>() {
            let rela = &*list.add(i);
            let kind = rela.r_info & 0xffff_ffff;
            if kind != R_GLOB_DAT && kind != R_JUMP_SLOT {
                continue;
            }
            let symbol = &*symbols.add((rela.r_info >> 32) as usize);
            let name = CStr::from_ptr(strings.add(symbol.st_name as usize));
            let target = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize;
            if search.program.iter().any(|(from, to)| (*from..*to).contains(&target)) {
                let place = (base + rela.r_offset as usize) as *mut usize;
                found.push(Slot { name: name.to_owned(), place, target });
            }
        }
    }
    match found.len() {
        0 => Err(format!("{ending} calls nothing of the server's")),
        _ => Ok(found),
    }
}

/// Overwrite an address that the loader has made read-only.
pub unsafe fn write(place: *mut usize, value: usize) -> Result<(), String> {
    let page = place as usize & !4095;
    if libc::mprotect(page as *mut c_void, 4096, libc::PROT_READ | libc::PROT_WRITE) != 0 {
        return Err("mprotect failed".into());
    }
    *place = value;
    Ok(())
}
