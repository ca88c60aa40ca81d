// An expression of scalars as a function, which the host writes, and the same of four each.
$includes
$uniforms

$scalar $name($scalars) {
    $lines
}

$vector $name($vectors) {
    return $vector($lanes);
}
