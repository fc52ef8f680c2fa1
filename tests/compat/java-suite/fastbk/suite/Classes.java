package fastbk.suite;

import java.io.File;
import java.lang.annotation.Annotation;
import java.lang.reflect.AnnotatedElement;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;

/**
 * Prints the name of every test class in a jar, and whether it extends one of the classes that start bookies. Arguments:
 * a class of that jar, which may be one of ours of the same name as well, and the base classes.
 */
public final class Classes {
    private Classes() {}

    public static void main(String[] arguments) throws Exception {
        ClassLoader loader = Classes.class.getClassLoader();
        List<Class<?>> bases = new ArrayList<>();
        for (int i = 1; i < arguments.length; i++) {
            bases.add(Class.forName(arguments[i], false, loader));
        }
        Class<?> inJar = Class.forName(arguments[0], false, loader);
        File file = new File(inJar.getProtectionDomain().getCodeSource().getLocation().toURI());
        try (JarFile jar = new JarFile(file)) {
            for (JarEntry entry : jar.stream().toList()) {
                String name = entry.getName();
                if (name.endsWith(".class") && !name.contains("$")) {
                    Class<?> type = Class.forName(
                            name.substring(0, name.length() - ".class".length()).replace('/', '.'), false, loader);
                    boolean hasBookies = bases.stream().anyMatch(base -> base.isAssignableFrom(type));
                    if (hasTests(type, hasBookies)) {
                        System.out.println("CLASS\t" + type.getName() + "\t" + hasBookies);
                    }
                }
            }
        }
    }

    private static boolean hasTests(Class<?> type, boolean hasBookies) {
        if (Modifier.isAbstract(type.getModifiers())) {
            return false;
        }
        try {
            if (isTest(type)) {
                return true;
            }
            for (Method method : type.getMethods()) {
                if (isTest(method)) {
                    return true;
                }
            }
        } catch (NoClassDefFoundError error) {
            // A library that only its own tests need: not what is looked for here, unless it starts bookies.
            return hasBookies;
        }
        return false;
    }

    /** JUnit's annotation or TestNG's. */
    private static boolean isTest(AnnotatedElement element) {
        for (Annotation one : element.getAnnotations()) {
            if (one.annotationType().getSimpleName().equals("Test")) {
                return true;
            }
        }
        return false;
    }
}
