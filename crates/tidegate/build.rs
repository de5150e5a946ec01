//! Tells cargo that the migrations are part of the program: a macro embeds them, which cargo does not see.

fn main() {
    println!("cargo:rerun-if-changed=sql");
}
