// A generated function of scalars, and its overload for vectors of four.
$includes
$uniforms

$scalar $name($scalars) {
    $lines
}

$vector $name($vectors) {
    return $vector($lanes);
}
