"""What is in a file: ELF images, symbols, notes, DWARF, BTF, and addresses to names."""
